"""Best round, mean of the last rounds, and targets, from a run's evaluations.

Papers report the last round, the best one or a mean of the last few, and how many
rounds a target took. All are computed from the records of the rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.tasks import CLASSIFICATION, Figure, Task
from fesem_jax.utils.errors import check

# Rounds that metrics may be of -> what tables say of them.
REPORTS = {
  'last': 'of the last round',
  'best': "of each run's best evaluated round by the first metric",
  'mean10': 'over the last ten evaluated rounds of each run',
}

# Entry of summaries of runs whose data change: the first round with the last data.
DATA_SINCE = 'data_since'

_KINDS = ('deployed', 'finetuned')
_LAST = 10  # Evaluations of `mean10`, at most.

Record = dict[str, Any]


def reports(history: Sequence[Record], task: Task = CLASSIFICATION) -> Record:
  """The best round and the mean of the last ten evaluations of a run.

  Args:
    history: records of rounds, of which those with scores count.
    task: whose first metric decides which round is the best.

  Returns:
    'best' and 'mean10', each with `deployed` and `finetuned` scores and, where some
    clients are bad, `honest` with the same of the others. Those of 'best' have their
    `round`, the first of equal ones; 'mean10' has the number of `evaluations`.
  """
  measured = [r for r in history if _KINDS[0] in r]
  honest = [r['honest'] | {'round': r['round']} for r in measured if 'honest' in r]
  made = {}
  for name, report in (('best', _best), ('mean10', _mean)):
    made[name] = report(measured, task)
    if honest:
      made[name]['honest'] = report(honest, task)
  return made


def _best(measured: Sequence[Record], task: Task) -> Record:
  best = {}
  for kind in _KINDS:
    values = np.array([r[kind][task.primary_column] for r in measured], np.float64)
    # Without examples to measure on, no metric is a number.
    chosen = len(measured) - 1
    if not np.isnan(values).all():
      chosen = int(np.nanargmax([task.primary.better(value) for value in values]))
    best[kind] = measured[chosen][kind] | {'round': measured[chosen]['round']}
  return best


def _mean(measured: Sequence[Record], _: Task) -> Record:
  last = measured[-_LAST:]
  names = {kind: last[-1][kind] for kind in _KINDS}
  means = {
    kind: {name: float(np.mean([r[kind][name] for r in last])) for name in names[kind]}
    for kind in _KINDS
  }
  return means | {'evaluations': len(last)}


def of_last_data(history: Sequence[Record], summary: Record) -> list[Record]:
  """Records of the rounds that had the data of the last one."""
  return [r for r in history if r['round'] >= summary.get(DATA_SINCE, 0)]


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
  history: Sequence[Record], targets: Sequence[float], task: Task = CLASSIFICATION
) -> list[Record]:
  """Rounds until the first metric of the task reaches each target in a run.

  Where some clients are bad, the metric is that of the honest ones. Returns for each
  target a dict of the `target` and, of the `deployed` and the `finetuned` models, the
  rounds or None; see `rounds_to`.
  """
  measured = [r | r.get('honest', {}) for r in history if _KINDS[0] in r]
  rounds, better = [r['round'] for r in measured], task.primary.better
  values = {
    kind: [better(r[kind][task.primary_column]) for r in measured] for kind in _KINDS
  }
  return [
    {'target': target}
    | {kind: rounds_to(better(target), rounds, values[kind]) for kind in _KINDS}
    for target in targets
  ]


def targets(texts: Sequence[str]) -> list[float]:
  """Targets from texts such as '0.97'."""
  return list(dict.fromkeys(float(text) for text in texts if text))


def check_targets(targets: Sequence[float], figure: Figure) -> None:
  """Raises `UserError` on targets that a share, such as an accuracy, never reaches."""
  for target in targets:
    is_possible = not figure.percent or target <= 1
    check(is_possible, f'target: must be at most 1 for {figure.label}; got {target:g}')
