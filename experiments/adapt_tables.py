"""Tables of new clients: by number of examples and rule, over the seeds of a run."""

from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis.tables import mean_and_std
from fesem_jax.tasks import Task
from fesem_jax.utils.text_tables import Column, Table, cell, csv_text

# Names of what stands beside the rules, and of all examples.
GLOBAL, ALONE, ALL = 'global model', 'alone', 'all'

# One run, number of examples and rule: see `adapt_measure.measure`.
Row = dict[str, Any]

_SHARES = {'in_group': 'in its group', 'as_loss': 'as by all losses'}


def _headings(task: Task) -> dict[str, str]:
  """Key of a column of `over_runs` -> heading."""
  figure = task.primary
  return {
    f'{kind}_{over}_{figure.name}': f'{name} {over}-{figure.heading}'
    for kind, name in (('joined', 'joined'), ('finetuned', 'fine-tuned'))
    for over in ('micro', 'macro')
  } | _SHARES


def over_runs(rows: list[Row]) -> list[Row]:
  """Mean and deviation over runs, for each number of examples and rule.

  Figures go by the names of `_headings`, shares and accuracies in percent, None where
  no run has them; the counts of clients are sums over 'runs', so many.
  """
  table = []
  for number, rule in dict.fromkeys((r['num_examples'], r['rule']) for r in rows):
    runs = [r for r in rows if (r['num_examples'], r['rule']) == (number, rule)]
    task = tasks.of_scores(runs[0]['joined'])
    out: Row = {'num_examples': number, 'rule': rule, 'task': task.name}
    out['runs'] = len(runs)
    out['evaluated_on'] = runs[0].get('evaluated_on', 'test')
    for kind in ('joined', 'finetuned'):
      for name in (f'{over}_{task.primary.name}' for over in ('micro', 'macro')):
        values = [r[kind][name] for r in runs]
        out[f'{kind}_{name}'] = mean_and_std(values, task.primary.factor)
    for name in ('in_group', 'as_loss'):
      values = [r[name] for r in runs if r[name] is not None]
      out[name] = mean_and_std(values) if values else None
    for name in ('clients', 'with_fewer', 'training_failed', 'finetuning_failed'):
      out[name] = sum(r[name] for r in runs)
    table.append(out)
  return table


def _note(table: list[Row]) -> str:
  """What the numbers of a table are."""
  runs, on = max(row['runs'] for row in table), table[0]['evaluated_on']
  return f'Mean and sample standard deviation over {runs} run(s), {on} examples.'


def table_of(table: list[Row]) -> Table:
  """The rows of `over_runs` as a table, without columns that no row has."""
  task = tasks.of(table[0])
  shown = [
    Column(key, head, f'.{1 if key in _SHARES else task.primary.digits}f', '', True)
    for key, head in _headings(task).items()
    if any(row[key] for row in table)
  ]
  rows = [
    [
      row['num_examples'],
      row['rule'],
      *(cell(row[c.key] or (None, None)) for c in shown),
    ]
    for row in table
  ]
  columns = [Column('num_examples', 'examples', 'd'), Column('rule', 'rule'), *shown]
  return Table(columns, rows, notes=[_note(table)], label='adapt')


def as_csv(rows: list[Row]) -> str:
  """Every run, number of examples and rule as CSV; figures as fractions."""
  plain = [
      'seed', 'num_examples', 'rule', 'in_group', 'as_loss', 'clients', 'with_fewer',
      'training_failed', 'finetuning_failed', 'evaluated_on',
  ]  # fmt: skip
  names = tasks.of_scores(rows[0]['joined']).columns
  kinds = [(kind, name) for kind in ('joined', 'finetuned') for name in names]
  return csv_text(
    [*plain, *(f'{kind}_{name}' for kind, name in kinds)],
    [
      [*(row[name] for name in plain), *(row[kind][name] for kind, name in kinds)]
      for row in rows
    ],
  )


def curves(
  table: list[Row],
) -> tuple[
  list[str], dict[tuple[str, str], dict[str, list[tuple[float, float | None]]]]
]:
  """Numbers of examples, and the panels of rules that `plots.by_value` draws."""
  numbers = list(dict.fromkeys(str(row['num_examples']) for row in table))
  task = tasks.of(table[0])
  panels: dict[tuple[str, str], dict[str, list[tuple[float, float | None]]]] = {}
  for kind, title in (('joined', 'After joining'), ('finetuned', 'Fine-tuned')):
    panel = panels.setdefault((title, task.primary.title), {})
    for row in table:
      panel.setdefault(row['rule'], []).append(row[f'{kind}_{task.primary_column}'])
  return numbers, panels
