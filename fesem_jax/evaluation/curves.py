"""Best round, mean of the last rounds, and targets, from a run's evaluations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.tasks import CLASSIFICATION, Task

# Rounds that metrics may be of -> what tables say of them.
REPORTS = {
  'last': 'of the last round',
  'best': "of each run's best evaluated round by the first metric",
  'mean10': 'over the last ten evaluated rounds of each run',
}

_KINDS = ('deployed', 'finetuned')
_LAST = 10  # Evaluations of `mean10`, at most.

Record = dict[str, Any]


def reports(history: Sequence[Record], task: Task = CLASSIFICATION) -> Record:
  """The best round and the mean of the last ten evaluations of a run.

  Returns 'best' and 'mean10', each with `deployed` and `finetuned` scores and, where
  some clients are bad, `honest` with the same of the others. Those of 'best', by the
  first metric of `task`, have their `round`, the first of equal ones; 'mean10' has the
  number of `evaluations`.
  """
  measured = [r for r in history if _KINDS[0] in r]
  honest = [r['honest'] | {'round': r['round']} for r in measured if 'honest' in r]
  reports = {'best': _best(measured, task), 'mean10': _mean(measured)}
  if honest:
    reports['best']['honest'] = _best(honest, task)
    reports['mean10']['honest'] = _mean(honest)
  return reports


def _best(measured: Sequence[Record], task: Task) -> Record:
  best = {}
  for kind in _KINDS:
    values = np.array([r[kind][task.primary_column] for r in measured], np.float64)
    # Without examples to measure on, no metric is a number.
    chosen = measured[-1]
    if not np.isnan(values).all():
      ranks = [task.primary.better(value) for value in values]
      chosen = measured[int(np.nanargmax(ranks))]
    best[kind] = chosen[kind] | {'round': chosen['round']}
  return best


def _mean(measured: Sequence[Record]) -> Record:
  last = measured[-_LAST:]
  means: Record = {
    kind: {
      name: float(np.mean([r[kind][name] for r in last])) for name in last[-1][kind]
    }
    for kind in _KINDS
  }
  return means | {'evaluations': len(last)}


def rounds_to(
  target: float, rounds: Sequence[float], values: Sequence[float]
) -> float | None:
  """Rounds until a curve first reaches a target, as McMahan et al. (2017) count them.

  The curve, `values` [N] of increasing `rounds` [N], is made monotone, the best value
  so far, and linear between the rounds in which it was measured; NaN counts as none.
  Returns the first measured round if its value reaches the target; None if none does.
  """
  best = np.maximum.accumulate(np.nan_to_num(values, nan=-np.inf, posinf=np.inf))
  reached = np.flatnonzero(best >= target)
  if not len(reached):
    return None
  i = int(reached[0])
  if i == 0 or not np.isfinite(best[i - 1]):
    return float(rounds[i])
  share = (target - best[i - 1]) / (best[i] - best[i - 1])
  return float(rounds[i - 1] + share * (rounds[i] - rounds[i - 1]))


def rounds_to_targets(
  history: Sequence[Record],
  targets: Sequence[float],
  task: Task = CLASSIFICATION,
  since: int = 0,
) -> list[Record]:
  """Rounds until the first metric of the task reaches each target in a run.

  Where some clients are bad, the metric is that of the honest ones; rounds before
  `since` do not count. Returns for each target a dict of the `target` and, of the
  `deployed` and the `finetuned` models, the rounds or None; see `rounds_to`.
  """
  better = task.primary.better
  measured = [r | r.get('honest', {}) for r in history if _KINDS[0] in r]
  measured = [r for r in measured if r['round'] >= since]
  rounds = [r['round'] for r in measured]
  reached: list[Record] = [{'target': target} for target in targets]
  for kind in _KINDS:
    values = [better(r[kind][task.primary_column]) for r in measured]
    for entry in reached:
      entry[kind] = rounds_to(better(entry['target']), rounds, values)
  return reached
