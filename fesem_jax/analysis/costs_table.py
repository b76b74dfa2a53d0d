"""Costs of methods: seconds, bytes, privacy, rounds; also relative to others'."""

from collections.abc import Sequence
from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis import clients_table, tables
from fesem_jax.analysis.tables import mean_and_std, over_seeds
from fesem_jax.evaluation.paired import Summaries, task_of
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.curves import of_last_data, rounds_to
from fesem_jax.run.results.records import Record
from fesem_jax.utils import display
from fesem_jax.utils.text_tables import Column, Table, cell

# Of the oracle's accuracy in the last round.
SHARE = 0.95

# Costs that are also multiples of FedAvg's.
_COSTS = ('seconds_per_round', 'gigabytes')

_COLUMNS = (
  Column('seconds_per_round', 's/round', '.3g'),
  Column('seconds_per_round_relative', 's / FedAvg', '.2f'),
  Column('gigabytes', 'GB', '.3g'),
  Column('start_gigabytes', 'start GB', '.3g'),
  Column('gigabytes_relative', 'bytes / FedAvg', '.2f'),
  Column('simulated_hours', 'simulated h', '.3g'),
  Column('epsilon', 'epsilon', '.3g'),
)
# Costs -> units of their columns. Bytes of large runs stay in GB.
_UNITS = {'gigabytes': display.BYTES[1:], 'simulated_hours': display.HOURS}

# See `rows`.
Row = dict[str, Any]


def with_curve(
  summary: Record, history: Sequence[Record], clients: ClientTable | None = None
) -> Record:
  """The summary of a run, with the 'curve' that `rows` counts rounds by.

  `clients` are for `clients_table`.
  """
  column = tasks.of(summary).primary_column
  measured = {
    r['round']: r.get('honest', r)['deployed'][column]
    for r in of_last_data(history, summary)
    if 'deployed' in r
  }
  curve = {'rounds': list(measured), 'deployed': list(measured.values())}
  return clients_table.with_clients(summary | {'curve': curve}, clients)


def label_of(summaries: Summaries, algorithm: str) -> str:
  """Label of the first method whose runs are of an algorithm; '' if none is."""
  for label, runs in summaries.items():
    if any(s is not None and s.get('algorithm') == algorithm for s in runs):
      return label
  return ''


def fed_avg(summaries: Summaries) -> str:
  """Label of the method that is FedAvg; '' if none is."""
  return 'fed_avg' if 'fed_avg' in summaries else label_of(summaries, 'fed_avg')


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
    SHARE * s.get('honest', s)['deployed'][task.primary_column] if s else None
    for s in summaries.get(oracle, [])
    if task.primary.percent
  ]
  table = {row['method']: row for row in over_seeds(summaries)}
  base = table.get(fed_avg(summaries), {})
  by_method = []
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
    by_method.append(row)
  return by_method


def _is_curve(curve: Record | None) -> bool:
  return curve is not None and len(curve['rounds']) > 1


def of_methods(methods: tables.Rows, relative: list[Row]) -> Table:
  """The costs of methods that some of them have.

  `methods` are from `tables.over_seeds`, `relative` from `rows` in the same order.
  """
  task = tasks.of(methods[0]) if methods else tasks.CLASSIFICATION
  costs = [
    {name: row.get(name) for name in (c.key for c in _COLUMNS)}
    | {f'{name}_relative': other[name] for name in _COSTS}
    for row, other in zip(methods, relative, strict=True)
  ]
  if len(methods) < 2:  # FedAvg alone, 1 of its own costs.
    costs = [row | {f'{name}_relative': None for name in _COSTS} for row in costs]
  kept = [_in_unit(c, costs) for c in _COLUMNS if any(row[c.key] for row in costs)]
  columns = [Column('method', 'method'), *kept]
  rows = [
    [row['method'], *(cell(held[c.key]) for c in kept)]
    for row, held in zip(methods, costs, strict=True)
  ]
  targets = dict.fromkeys(r['target'] for row in methods for r in row['rounds_to'])
  for target in targets:
    reached = [{r['target']: r for r in m['rounds_to']}.get(target) for m in methods]
    _append(columns, rows, f'{target:g}', task.primary.target(target), reached)
  of_oracle = len(relative) > 1 and any(row['seeds'] for row in relative)
  if of_oracle:
    shown = [row if row['seeds'] else None for row in relative]
    _append(columns, rows, 'oracle', f'{100 * SHARE:g} % of oracle', shown)
  caption = 'Seconds are medians, bytes and hours means over seeds of a run.'
  if targets or of_oracle:
    of = ', honest clients' * tables.has_honest(methods)
    of += ', validation examples' * any(row['evaluated_on'] for row in methods)
    caption += (
      f' Rounds until the deployed micro {task.primary.label}{of and f"{of},"} reaches '
      'a target: mean and sample standard deviation over the seeds that reach it.'
    )
  return Table(columns, rows, caption, label='costs')


def _in_unit(column: Column, methods: Sequence[Row]) -> Column:
  """A column in the largest unit of which some method has one; else in the least."""
  for key, units in _UNITS.items():
    if column.key.endswith(key):
      unit, factor = display.unit_of(max(row[key] or 0.0 for row in methods), units)
      head = column.head.replace(units[0][0], unit)
      return column._replace(head=head, factor=factor)
  return column


def _append(
  columns: list[Column],
  rows: list[list[Any]],
  key: str,
  head: str,
  reached: Sequence[dict[str, Any] | None],
) -> None:
  """Adds the rounds to a target, and of how many seeds they are unless of all."""
  some = any(f and f['reached'] < f['seeds'] for f in reached)
  columns.append(Column(f'rounds_to_{key}', head, '.1f', 'rounds to', True))
  if some:
    columns.append(Column(f'seeds_to_{key}', 'seeds', '', 'rounds to'))
  for row, f in zip(rows, reached, strict=True):
    row.append(cell(f['rounds'] or (None, None), instead='not reached') if f else None)
    if some:
      row.append(f'{f["reached"]} of {f["seeds"]}' if f else None)
