"""Tables of new clients: by number of examples and rule, over the seeds of a run."""

import csv
import io
from typing import Any

from fesem_jax.analysis.tables import COLUMNS, mean_and_std
from fesem_jax.utils.display import in_markdown, shown

# Names of what stands beside the rules, and of all examples.
GLOBAL, ALONE, ALL = 'global model', 'alone', 'all'

# One run, number of examples and rule: see `adapt_measure.measure`.
Row = dict[str, Any]

# Key of a column of `over_runs` -> heading.
_COLUMNS = {
  'joined_micro_accuracy': 'joined micro-acc',
  'joined_macro_accuracy': 'joined macro-acc',
  'finetuned_micro_accuracy': 'fine-tuned micro-acc',
  'finetuned_macro_accuracy': 'fine-tuned macro-acc',
  'in_group': 'in its group',
  'as_loss': 'as by all losses',
}


def over_runs(rows: list[Row]) -> list[Row]:
  """Aggregates the runs of each number of examples and rule.

  Args:
    rows: of one run after the other, in the same order.

  Returns:
    For each number and rule a dict of both, of (mean, standard deviation) in percent by
    the names of `_COLUMNS`, None for what there is not, and of the counts `clients`,
    `with_fewer`, `training_failed` and `finetuning_failed` of all runs.
  """
  table = []
  for number, rule in dict.fromkeys((r['num_examples'], r['rule']) for r in rows):
    runs = [r for r in rows if (r['num_examples'], r['rule']) == (number, rule)]
    out: Row = {'num_examples': number, 'rule': rule}
    for kind in ('joined', 'finetuned'):
      for name in ('micro_accuracy', 'macro_accuracy'):
        out[f'{kind}_{name}'] = mean_and_std([r[kind][name] for r in runs])
    for name in ('in_group', 'as_loss'):
      values = [r[name] for r in runs if r[name] is not None]
      out[name] = mean_and_std(values) if values else None
    for name in ('clients', 'with_fewer', 'training_failed', 'finetuning_failed'):
      out[name] = sum(r[name] for r in runs)
    table.append(out)
  return table


def _cell(value: tuple[float, float | None] | None, join: str) -> str:
  if value is None:
    return ''
  spread = '' if value[1] is None else f'{join}{value[1]:.1f}'
  return f'{value[0]:.1f}{spread}'


def _columns(table: list[Row]) -> dict[str, str]:
  """The columns that a table has."""
  return {key: head for key, head in _COLUMNS.items() if any(row[key] for row in table)}


def _notes(table: list[Row]) -> list[str]:
  """What a reader should know of a table."""
  said = []
  for row in table:
    number, clients = row['num_examples'], row['clients']
    if fewer := row['with_fewer']:
      said.append(
        f'Of {clients} new clients, in all runs, {fewer} have fewer than {number} '
        'training examples and join with all they have.'
      )
  for row in table:
    where = f'{row["rule"]}, {row["num_examples"]} examples'
    if failed := row['training_failed']:
      said.append(f'{where}: training of {failed} clients was not finite.')
    if failed := row['finetuning_failed']:
      said.append(
        f'{where}: fine-tuning of {failed} clients diverged; the model before counts '
        'for them.'
      )
  return list(dict.fromkeys(said))


def as_markdown(table: list[Row]) -> str:
  """The table as Markdown."""
  columns = _columns(table)
  lines = [
    f'| examples | rule | {" | ".join(columns.values())} |',
    '|---' * (len(columns) + 2) + '|',
  ]
  for row in table:
    cells = [_cell(row[key], ' ± ') for key in columns]
    head = f'| {row["num_examples"]} | {in_markdown(row["rule"])} | '
    lines.append(head + ' | '.join(cells) + ' |')
  lines += [f'\n{in_markdown(note)}' for note in _notes(table)]
  return '\n'.join(lines) + '\n'


def as_text(table: list[Row]) -> str:
  """The table for a terminal."""
  columns = _columns(table)
  widths = [max(len(head), 10) for head in columns.values()]
  heads = [f'{h:>{w}}' for h, w in zip(columns.values(), widths, strict=True)]
  lines = [f'{"examples":>8}  {"rule":12}  ' + '  '.join(heads)]
  for row in table:
    cells = [_cell(row[key], '±') for key in columns]
    cells = [f'{c:>{w}}' for c, w in zip(cells, widths, strict=True)]
    line = f'{row["num_examples"]:>8}  {row["rule"]:12}  ' + '  '.join(cells)
    lines.append(line.rstrip())
  return '\n'.join([*lines, *(shown(note, 2000) for note in _notes(table))])


def as_csv(rows: list[Row]) -> str:
  """Every run, number of examples and rule as CSV; figures as fractions."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  plain = [
      'seed', 'num_examples', 'rule', 'in_group', 'as_loss', 'clients', 'with_fewer',
      'training_failed', 'finetuning_failed',
  ]  # fmt: skip
  kinds = [(kind, name) for kind in ('joined', 'finetuned') for name in COLUMNS]
  writer.writerow([*plain, *(f'{kind}_{name}' for kind, name in kinds)])
  for row in rows:
    first = ['' if row[name] is None else row[name] for name in plain]
    writer.writerow([*first, *(row[kind][name] for kind, name in kinds)])
  return out.getvalue()


def curves(
  table: list[Row],
) -> tuple[list[str], dict[str, dict[str, list[tuple[float, float | None]]]]]:
  """What `plots.accuracy_by_examples` draws: numbers, and panels of rules."""
  numbers = list(dict.fromkeys(str(row['num_examples']) for row in table))
  panels: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
  for kind, title in (('joined', 'After joining'), ('finetuned', 'Fine-tuned')):
    panel = panels.setdefault(title, {})
    for row in table:
      panel.setdefault(row['rule'], []).append(row[f'{kind}_micro_accuracy'])
  return numbers, panels
