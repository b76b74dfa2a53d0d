"""Compares the work of simulators and their times."""

from typing import Any, NamedTuple

import numpy as np

OURS = 'ours'
OTHER_JAX = 'ours, other JAX'


class Timed(NamedTuple):
  """Timed rounds of a simulator in one arrangement.

  Attributes:
    simulator: its name.
    arrangement: of its processes and threads.
    rates: SGD steps a second of each round.
    dropped: rounds left out because other processes used the cores.
    quiet: whether `rates` are of quiet rounds; where there was none they are of all.
    processor: processor seconds of each round, with those of its processes' children.
  """

  simulator: str
  arrangement: str
  rates: list[float]
  dropped: int = 0
  quiet: bool = True
  processor: tuple[float, ...] = (0.0,)


def check_equal_work(
  name: str, norms: dict[Any, dict[str, float]], rtol: float
) -> None:
  """Raises `AssertionError` unless all change every parameter alike.

  Args:
    name: what was run.
    norms: `Worker.norms` of each simulator, ours first.
    rtol: tolerance, relative to ours.
  """
  want = next(iter(norms.values()))
  for simulator, got in norms.items():
    if got.keys() != want.keys():
      raise AssertionError(f'{name}: {simulator} has other parameters than ours.')
    for what, norm in got.items():
      if not np.isclose(norm, want[what], rtol=rtol, atol=1e-6):
        raise AssertionError(
          f'{name}, {what}: a norm of {norm:.6g} with {simulator}, of '
          f'{want[what]:.6g} with ours.'
        )


def rows(case: dict[str, Any], timed: list[Timed]) -> list[dict[str, Any]]:
  """One row for each arrangement; ratios are to the best one of a simulator.

  Args:
    case: what begins every row, with the `steps` of a round.
    timed: of every simulator in each of its arrangements; one is ours.

  Returns:
    `ours_over_it` is in the rows that are the `best` of their simulator, and
    `over_fastest_peer` in ours; ours with another JAX is no peer.
  """
  rates = [float(np.median(t.rates)) for t in timed]
  best: dict[str, float] = {}
  for t, rate in zip(timed, rates, strict=True):
    best[t.simulator] = max(rate, best.get(t.simulator, 0.0))
  ours = best[OURS]
  peers = [rate for name, rate in best.items() if name not in (OURS, OTHER_JAX)]
  out = []
  for t, rate in zip(timed, rates, strict=True):
    row = case | {
      'simulator': t.simulator,
      'arrangement': t.arrangement,
      'steps_per_second': rate,
      'seconds': case['steps'] / rate,
      'processor_seconds': float(np.median(t.processor)),
      'best': t.simulator == OURS or rate == best[t.simulator],
      'ours_over_it': None,
      'over_fastest_peer': None,
      'rounds': len(t.rates),
      'dropped': t.dropped,
      'quiet': t.quiet,
    }
    if t.simulator == OURS:
      row['over_fastest_peer'] = ours / max(peers) if peers else None
    elif row['best']:
      row['ours_over_it'] = ours / rate
    out.append(row)
  return out
