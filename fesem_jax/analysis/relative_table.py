"""Rounds to a share of the oracle's accuracy, and costs as multiples of FedAvg's."""

from collections.abc import Sequence
from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis.tables import mean_and_std, over_seeds, reached_text
from fesem_jax.evaluation.paired import Summaries, task_of
from fesem_jax.results.curves import rounds_to
from fesem_jax.results.records import Record
from fesem_jax.utils.display import in_markdown
from fesem_jax.utils.text_tables import markdown

# Of the oracle's accuracy in the last round.
SHARE = 0.95

# Entry of a row of costs -> what its column is called.
_COSTS = {'seconds_per_round': 'seconds a round', 'gigabytes': 'bytes'}

# See `rows`.
Row = dict[str, Any]


def with_curve(summary: Record, history: Sequence[Record]) -> Record:
  """The summary of a run, with the 'curve' that `rows` counts rounds by."""
  column = tasks.of(summary).primary_column
  measured = {r['round']: r['deployed'][column] for r in history if 'deployed' in r}
  curve = {'rounds': list(measured), 'deployed': list(measured.values())}
  return summary | {'curve': curve}


def label_of(summaries: Summaries, algorithm: str) -> str:
  """Label of the first method whose runs are of an algorithm; '' if none is."""
  for label, runs in summaries.items():
    if any(s is not None and s.get('algorithm') == algorithm for s in runs):
      return label
  return ''


def rows(summaries: Summaries, oracle: str = '') -> list[Row]:
  """How soon each method is near the oracle, and what it costs relative to FedAvg.

  Args:
    summaries: label of each method -> its summary of each seed, with a 'curve' of
      `with_curve` where rounds are to be counted.
    oracle: label of the oracle; '' where there is none.

  Returns:
    A row for each method: 'method' and 'task'; 'rounds', (mean, standard deviation)
    over the seeds that reach `SHARE` times the last accuracy of the oracle with the
    same seed; 'reached' and 'seeds', how many of them do, where one that diverges does
    not; 'seconds_per_round' and 'gigabytes', as multiples of those of the method that
    is called fed_avg, or of the first whose algorithm is FedAvg. Entries are None
    where they are not known: rounds without an oracle, with fewer than two evaluations
    and for tasks without an accuracy, multiples without FedAvg.
  """
  task = task_of(summaries.values())
  targets = [
    SHARE * s['deployed'][task.primary_column] if s else None
    for s in summaries.get(oracle, [])
    if task.primary.percent
  ]
  table = {row['method']: row for row in over_seeds(summaries)}
  base = table.get('fed_avg') or table.get(label_of(summaries, 'fed_avg'), {})
  found = []
  for label, runs in summaries.items():
    row: Row = {'method': label, 'task': task.name, 'rounds': None}
    taken = [
      rounds_to(target, s['curve']['rounds'], s['curve']['deployed']) if s else None
      for s, target in zip(runs, targets, strict=False)
      if target is not None and (s is None or _is_curve(s.get('curve')))
    ]
    known = [r for r in taken if r is not None]
    row |= {'reached': len(known), 'seeds': len(taken)}
    row['rounds'] = mean_and_std(known, 1.0) if known else None
    for name in _COSTS:
      own, of_fed_avg = table[label][name], base.get(name)
      row[name] = own / of_fed_avg if own is not None and of_fed_avg else None
    found.append(row)
  return found


def _is_curve(curve: Record | None) -> bool:
  return curve is not None and len(curve['rounds']) > 1


def as_markdown(found: list[Row]) -> str:
  """The table, with a sentence on what it shows; empty if it has nothing to compare."""
  costs = [name for name in _COSTS if any(row[name] for row in found)]
  counted = any(row['seeds'] for row in found)
  if len(found) < 2 or not (counted or costs):
    return ''
  label = tasks.of(found[0]).primary.label
  said, heads = [], []
  if counted:
    heads.append(f'rounds to {100 * SHARE:g} % of the oracle')
    said.append(
      f'Rounds until the deployed micro {label} reaches {100 * SHARE:g} % of that of '
      'the oracle in the last round of the same seed, by the monotone curve, linear '
      'between evaluated rounds.'
    )
  if costs:
    heads += [f'{_COSTS[name]} / FedAvg' for name in costs]
    said.append('Costs are multiples of those of FedAvg.')
  lines = [
    [
      in_markdown(row['method']),
      *([reached_text(row) if row['seeds'] else ''] if counted else []),
      *('' if row[name] is None else f'{row[name]:.2f}' for name in costs),
    ]
    for row in found
  ]
  return '\n'.join([' '.join(said), '', *markdown(['method', *heads], lines)]) + '\n'
