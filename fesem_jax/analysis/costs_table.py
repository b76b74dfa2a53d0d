"""Costs of methods: seconds, bytes, privacy, and rounds to a target."""

from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis import tables
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.utils import display
from fesem_jax.utils.text_tables import Column, Table, cell

_COLUMNS = (
  Column('seconds_per_round', 's/round', '.3g'),
  Column('gigabytes', 'GB', '.3g'),
  Column('start_gigabytes', 'start GB', '.3g'),
  Column('epsilon', 'epsilon', '.3g'),
)


def label_of(summaries: Summaries, algorithm: str) -> str:
  """Label of the first method whose runs are of an algorithm; '' if none is."""
  for label, runs in summaries.items():
    if any(s is not None and s.get('algorithm') == algorithm for s in runs):
      return label
  return ''


def of_methods(methods: tables.Rows) -> Table:
  """The costs that some of the methods have; `methods` are from `over_seeds`."""
  task = tasks.of(methods[0]) if methods else tasks.CLASSIFICATION
  columns = [Column('method', 'method')]
  rows: list[list[Any]] = [[row['method']] for row in methods]
  for column in (c for c in _COLUMNS if any(row[c.key] for row in methods)):
    if column.key.endswith('gigabytes'):  # Bytes of large runs stay in GB.
      most = max(row[column.key] or 0.0 for row in methods)
      unit, factor = display.unit_of(most, display.BYTES[1:])
      column = column._replace(head=column.head.replace('GB', unit), factor=factor)
    columns.append(column)
    for cells, row in zip(rows, methods, strict=True):
      cells.append(cell(row[column.key]))
  targets = dict.fromkeys(r['target'] for row in methods for r in row['rounds_to'])
  for target in targets:
    reached = [{r['target']: r for r in m['rounds_to']}.get(target) for m in methods]
    head = task.primary.target(target)
    columns.append(Column(f'rounds_to_{target:g}', head, '.1f', 'rounds to', True))
    columns.append(Column(f'seeds_to_{target:g}', 'seeds', '', 'rounds to'))
    for cells, f in zip(rows, reached, strict=True):
      cells.append(f and cell(f['rounds'] or (None, None), instead='not reached'))
      cells.append(f and f'{f["reached"]} of {f["seeds"]}')
  caption = 'Seconds are medians, bytes means over seeds of a run.'
  if targets:
    of = ', honest clients' * tables.has_honest(methods)
    of += ', validation examples' * any(row['evaluated_on'] for row in methods)
    caption += (
      f' Rounds until the deployed micro {task.primary.label}{of and f"{of},"} reaches '
      'a target: mean and sample standard deviation over the seeds that reach it.'
    )
  return Table(columns, rows, caption, label='costs')
