r"""Time and memory of a round as clients, centers, parameters or epochs grow.

  python -m studies.growth --axis=clients
  python -m studies.growth --draw=docs/figures/growth

FeSEM, stacked, on W4: 1,000 clients, 4 centers, 2,410 parameters and one epoch. One of
these grows at a time. Parameters grow with 16 clients and epochs with 200.

Times are processor seconds of the process, which other work on the machine disturbs
less than clock time; `load` is the machine's. `bytes_per_client` are the state, the
data and, by the compiler's count, what a round needs beyond them. `slope` is the
exponent between a case and the one before: a round's time grows as the number to it.
"""

import itertools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS, Workload

# Axis -> its values; of parameters, widths of two hidden layers.
VALUES = {
  'clients': (100, 1_000, 10_000, 100_000),
  'centers': (1, 4, 16, 64),
  'parameters': (70, 281, 963, 3124),
  'epochs': (1, 5, 20, 50),
}

# Shorter passes would be as long as the clock's resolution.
_LEAST_SECONDS = 0.2

COLUMNS = (
  'axis',
  'value',
  'clients',
  'milliseconds',
  'microseconds_per_client',
  'slope',
  'bytes_per_client',
  'load',
)


def case(axis: str, value: int) -> tuple[Workload, int, int]:
  """The workload, its clients and the centers of one case."""
  base = WORKLOADS['W4']
  if axis == 'clients':
    return base, value, 4
  if axis == 'centers':
    return base, 1_000, value
  if axis == 'parameters':
    # Rates are lower for large models, which would leave float32 otherwise.
    return base._replace(hidden=(value, value), learning_rate=0.01), 16, 4
  return base._replace(epochs=value), 200, 4


def processor_seconds(fn: Callable[[], Any], passes: int) -> float:
  """Median processor seconds of a call, after one that is not counted."""

  def timed(calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
      jax.block_until_ready(fn())
    return (time.process_time() - began) / calls

  timed(1)
  calls = math.ceil(_LEAST_SECONDS / max(timed(1), 1e-3))
  return float(np.median([timed(calls) for _ in range(passes)]))


def measured(axis: str, value: int, mesh: Any, passes: int) -> dict[str, Any]:
  """One case's time and memory."""
  workload, clients, centers = case(axis, value)
  local = common.training(workload, mesh)
  train = common.federated(workload, clients, mesh)
  method = common.Method('fesem', {'num_clusters': centers}, local, train)
  seconds = processor_seconds(method.round, passes)
  needs = method.needs
  fresh = needs.outputs - needs.aliased + needs.temporaries
  size = sum(math.prod(shape) for shape in workload.shapes().values())
  return {
    'axis': axis,
    'value': size if axis == 'parameters' else value,
    'clients': clients,
    'milliseconds': 1e3 * seconds,
    'microseconds_per_client': 1e6 * seconds / clients,
    'bytes_per_client': (method.state_bytes() + mesh.size * fresh) / clients,
    'load': os.getloadavg()[0],
  }


def with_slopes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """The rows of one axis, in order, with the exponent since the one before."""
  sloped = rows[:1]
  for before, row in itertools.pairwise(rows):
    grown = math.log(row['value'] / before['value'])
    slope = math.log(row['milliseconds'] / before['milliseconds']) / grown
    sloped.append(row | {'slope': slope})
  return sloped


def main(argv: list[str]) -> None:
  """Measures one axis, or draws what was measured."""
  del argv
  f = flags.FLAGS
  if f.draw:
    from studies import growth_figure  # Needs Matplotlib, which runs do not.

    runs = json.loads((common.RESULTS / 'growth_cpu.json').read_text())['runs']
    saved = [row for run in runs for row in run['rows']]
    growth_figure.draw(saved, pathlib.Path(f.draw))
    return
  mesh = common.setup()
  rows: list[dict[str, Any]] = []
  for value in VALUES[f.axis]:
    rows.append(measured(f.axis, value, mesh, f.rounds))
    rows = with_slopes(rows)
    print(common.table(rows[-1:], COLUMNS), flush=True)
  print(common.table(rows, COLUMNS))
  common.save('growth', mesh, rows)


if __name__ == '__main__':
  flags.DEFINE_enum('axis', 'clients', list(VALUES), 'What grows.')
  flags.DEFINE_integer('rounds', 5, 'Timed passes of each case.')
  flags.DEFINE_string('draw', '', 'Draws all saved results to this .png and .svg.')
  app.run(main)
