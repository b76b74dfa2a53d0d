"""The regret of each method's assignments, over seeds."""

from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis.tables import fewer_seeds, mean_and_std
from fesem_jax.evaluation.paired import Summaries, task_of
from fesem_jax.utils.text_tables import Column, Table, cell

# Column of the table -> the summary's entry and figure, and the digits that are shown.
_COLUMNS = {
  'clients with a better center (%)': ('regret', 'misassigned', 1),
  'regret': ('regret', 'mean', 4),
  'regret by examples': ('regret', 'by_examples', 4),
  'margin': ('margin', 'mean', 4),
  'test regret': ('regret', 'test_mean', 4),
  'gain on test data': ('regret', 'test_gain', 2),
}

# A method's 'method' and 'task', and (mean, standard deviation) of each column, None if
# unknown.
Row = dict[str, Any]


def rows(summaries: Summaries) -> list[Row]:
  """The regret of each method, shares and accuracies in percent.

  Returns a row for each method that has some, with means and standard deviations over
  seeds.
  """
  task = task_of(summaries.values())
  factors = {'misassigned': 100.0, 'test_gain': task.primary.factor}
  by_method = []
  for label, runs in summaries.items():
    done = [s for s in runs if s is not None and s.get('regret')]
    row: Row = {'method': label, 'task': task.name, 'seeds': len(done)}
    row['of_seeds'] = len(runs)
    row['bad'] = any('honest' in s for s in done)
    row['evaluated_on'] = next((s.get('evaluated_on', '') for s in done), '')
    margins = [(s.get('margin') or {}).get('mean') for s in done]
    row['seeds_without_margin'] = margins.count(None)
    for heading, (entry, name, _) in _COLUMNS.items():
      values = [(s.get(entry) or {}).get(name) for s in done]
      known = [x for x in values if x is not None]
      row[heading] = mean_and_std(known, factors.get(name, 1.0)) if known else None
    if done:
      by_method.append(row)
  return by_method


def table(by_method: list[Row]) -> Table | None:
  """The table of `rows`; None without any."""
  if not by_method:
    return None
  columns = [Column('method', 'method')]
  for heading, (entry, name, digits) in _COLUMNS.items():
    if name == 'test_gain' and not tasks.of(by_method[0]).primary.percent:
      digits = 4
    columns.append(Column(f'{entry}_{name}', heading, f'z.{digits}f', '', True))
  rows = [
    [row['method'], *(cell(row[heading] or (None, None)) for heading in _COLUMNS)]
    for row in by_method
  ]
  caption = (
    'Regret: training loss of the own center minus that of the best one; margin: of '
    'the second-best center minus that of the own one. Mean and sample standard '
    'deviation over seeds.'
  )
  if any(row['evaluated_on'] for row in by_method):
    caption += ' Test data are validation examples.'
  left_out = fewer_seeds(by_method)
  left_out += ['Bad clients are left out.'] * any(row['bad'] for row in by_method)
  notes = [' '.join(left_out)] * bool(left_out)
  return Table(columns, rows, caption, notes=notes, label='regret')
