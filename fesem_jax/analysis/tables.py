"""The table of a comparison, as Markdown, LaTeX, CSV and plain text."""

import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.evaluation.paired import Summaries, task_of
from fesem_jax.results.curves import REPORTS
from fesem_jax.tasks import Task
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import in_latex, in_markdown, printable
from fesem_jax.utils.text_tables import aligned, csv_text, markdown, mean_and_deviation

_KINDS = ('finetuned', 'deployed')
_HONEST = ('honest_finetuned', 'honest_deployed')

# How well clusters agree with the true ones, as tables show it.
AGREEMENTS = ('ari', 'ami')

# What tables say of runs whose code changed since.
EARLIER_CODE = "are of earlier code: the user's file changed after they had begun"

# A table has one dict for each method; see `over_seeds`.
Table = list[dict[str, Any]]


def mean_and_std(
  values: list[float], factor: float = 100.0
) -> tuple[float, float | None]:
  """Mean and sample standard deviation (None for one seed), by default in percent."""
  scaled = factor * np.array(values)
  return float(scaled.mean()), float(scaled.std(ddof=1)) if len(values) > 1 else None


def over_seeds(summaries: Summaries, report: str = 'last') -> Table:
  """Aggregates the seeds of each method into a table.

  The figures are those of `report`, one of `curves.REPORTS`; tables say so.

  Each row has the label ('method'), the name of the 'task', the number of 'seeds' and
  how many 'diverged'; the names of the 'metrics' of the users' own;
  '{kind}_{column}' for each column of `tasks.columns_of`, (mean, standard deviation),
  accuracies and F1 in percent, where kind is finetuned, deployed, unseen,
  honest_finetuned or honest_deployed; the means 'ari' and 'ami'; the
  median 'seconds_per_round'; the mean 'gigabytes' that a run sends, 10^9 bytes both
  ways, and 'simulated_hours' that it takes on devices of a profile, None where a seed
  does not say; the largest 'epsilon'; the mean success of a
  'backdoor', in percent; 'untested', clients without test examples;
  'notes', a list of sentences; how many runs are of 'earlier_code', see
  `experiments.plugins`; 'report'; and 'rounds_to', for each target of
  `curves.rounds_to_targets` the 'target', of how many 'seeds' it is known whether the
  deployed models 'reached' it, how many did, and (mean, standard deviation) of their
  'rounds'. Figures that no seed has are None.
  """
  out = []
  task = task_of(summaries.values())
  finished = [s for runs in summaries.values() for s in runs if s is not None]
  metrics = tasks.own_metrics(task, (s['deployed'] for s in finished))
  for label, runs in summaries.items():
    done = [s for s in runs if s is not None]
    row: dict[str, Any] = {'method': label, 'task': task.name, 'seeds': len(runs)}
    row |= {'diverged': len(runs) - len(done), 'metrics': metrics}
    honest = [s['honest'] for s in done if s.get('honest')]
    for of, scores, kinds in (
      ('', done, (*_KINDS, 'unseen')),
      ('honest_', honest, _KINDS),
    ):
      for kind, column in itertools.product(kinds, tasks.columns_of(task, metrics)):
        values = [s[kind][column] for s in scores if column in (s.get(kind) or {})]
        factor = task.figure(column).factor
        row[f'{of}{kind}_{column}'] = mean_and_std(values, factor) if values else None
    for name in AGREEMENTS:
      found = [s['clusters'].get(name) for s in done if s['clusters']]
      known = [a for a in found if a is not None]
      row[name] = float(np.mean(known)) if known else None
    seconds = [s['timing']['seconds_per_round'] for s in done]
    seconds = [s for s in seconds if s is not None]
    row['seconds_per_round'] = float(np.median(seconds)) if seconds else None
    row |= _costs(done)
    row['untested'] = max((s['clients_without_test_examples'] for s in done), default=0)
    row['notes'] = done[0].get('notes', []) if done else []
    if failed := sum(s.get('finetuning_failed') or 0 for s in done):
      row['notes'] = row['notes'] + [
        f'fine-tuning of {failed} clients, in all seeds, diverged; their deployed '
        'models are used.'
      ]
    row['earlier_code'] = sum(bool(s.get('earlier_code')) for s in done)
    if row['earlier_code']:
      names = dict.fromkeys(n for s in done for n in s.get('earlier_code') or ())
      row['notes'] = row['notes'] + [
        f'† {row["earlier_code"]} of {len(done)} runs {EARLIER_CODE} '
        f'({" and ".join(names)}).'
      ]
    row['report'] = report
    row['rounds_to'] = _rounds_to(done)
    out.append(row)
  return out


def _costs(done: list[dict[str, Any]]) -> dict[str, float | None]:
  """The entries of what a method's finished runs have sent, and spent of privacy."""

  def mean(names: Sequence[str], divisor: float) -> float | None:
    each = [[(s.get('costs') or {}).get(name) for name in names] for s in done]
    if not each or any(None in of_run for of_run in each):
      return None
    return float((np.array(each, float).sum(axis=1) / divisor).mean())

  sent = mean(('bytes_down', 'bytes_up'), 1e9)

  def of_all(name: str) -> list[float]:
    values = [s.get(name) for s in done]
    return [] if None in values else [float(v) for v in values if v is not None]

  opened = of_all('backdoor_success')
  return {
    'gigabytes': sent,
    'simulated_hours': mean(('simulated_seconds',), 3600.0),
    'epsilon': max(of_all('epsilon'), default=None),
    'backdoor': 100 * float(np.mean(opened)) if opened else None,
  }


def _cost_columns(table: Table) -> dict[str, str]:
  """Costs that some method of a table has -> the heading of their column."""
  heads = {
    'gigabytes': 'GB', 'simulated_hours': 'simulated h', 'epsilon': 'epsilon',
    'backdoor': 'backdoor %',
  }  # fmt: skip
  return {k: head for k, head in heads.items() if any(r.get(k) for r in table)}


def _task(table: Table) -> Task:
  """The task of a table's methods."""
  return tasks.of(table[0]) if table else tasks.CLASSIFICATION


def _columns(table: Table) -> tuple[str, ...]:
  """The columns of the task, then those of metrics of the user's own."""
  return tasks.columns_of(_task(table), table[0]['metrics'] if table else ())


def _heading(task: Task, column: str) -> str:
  """Heading of a column, e.g. 'micro-acc'."""
  return f'{column.split("_", 1)[0]}-{task.figure(column).heading}'


def _rounds_to(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """The entry 'rounds_to' of a method's finished runs; see `over_seeds`."""
  found: dict[float, list[float | None]] = {}
  for summary in done:
    for each in summary.get('rounds_to_target', []):
      found.setdefault(each['target'], []).append(each['deployed'])
  rows = []
  for target, rounds in found.items():
    known = [r for r in rounds if r is not None]
    mean = mean_and_std(known, 1.0) if known else None
    of_seeds = {'reached': len(known), 'seeds': len(rounds)}
    rows.append({'target': target, **of_seeds, 'rounds': mean})
  return rows


def _targets(table: Table) -> list[float]:
  """The targets that some method of a table has rounds to."""
  return list(dict.fromkeys(r['target'] for row in table for r in row['rounds_to']))


def reached_text(found: dict[str, Any], join: str = ' ± ') -> str:
  """Rounds to a target as text, with `join` between mean and standard deviation.

  `found` has how many of the 'seeds' 'reached' it, which the text says unless all did,
  and (mean, standard deviation) of their 'rounds', None if none did.
  """
  if found['rounds'] is None:
    return 'not reached'
  reached, seeds = found['reached'], found['seeds']
  some = '' if reached == seeds else f' ({reached} of {seeds})'
  return mean_and_deviation(found['rounds'], join=join) + some


def _last(table: Table, join: str) -> dict[str, list[str]]:
  """Heading of each column after the figures -> its cells.

  ARI, AMI, seconds of a round, costs, and rounds to each target with the seeds that
  reached it unless all did.
  """
  found = {
    name.upper(): ['' if row[name] is None else f'{row[name]:z.2f}' for row in table]
    for name in AGREEMENTS
  }
  for name, head in {'seconds_per_round': 's/round', **_cost_columns(table)}.items():
    values = [row.get(name) for row in table]
    found[head] = ['' if v is None else f'{v:.3g}' for v in values]
  for target in _targets(table):
    reached = [[r for r in row['rounds_to'] if r['target'] == target] for row in table]
    cells = [reached_text(r[0], join) if r else '' for r in reached]
    found[f'rounds to {_task(table).primary.target(target)}'] = cells
  return found


def _cells(table: Table, kinds: Iterable[str], join: str) -> list[list[str]]:
  """Figures of each method as text: the columns of each kind of models."""
  keys = [(kind, column) for kind in kinds for column in _columns(table)]
  return [[_cell(row, *key, join) for key in keys] for row in table]


def _cell(row: dict[str, Any], kind: str, column: str, join: str) -> str:
  """A figure as text, its mean and standard deviation on either side of `join`."""
  task, value = tasks.of(row), row[f'{kind}_{column}']
  if value is None and row[f'finetuned_{task.primary_column}']:
    return ''
  if value is None:
    return 'diverged' if row['diverged'] else 'not run'
  text = mean_and_deviation(value, task.figure(column).digits, join)
  return text + ('*' if row['diverged'] else '')


def _kinds(table: Table) -> tuple[str, ...]:
  """Kinds of figures that a table has."""
  unseen = any(row[f'unseen_{_task(table).primary_column}'] for row in table)
  honest = _HONEST if has_honest(table) else ()
  return (*honest, *_KINDS, 'unseen') if unseen else (*honest, *_KINDS)


def has_honest(table: Table) -> bool:
  """Whether some clients of a table are bad."""
  return any(row[f'honest_deployed_{_task(table).primary_column}'] for row in table)


def _named_kinds(table: Table) -> dict[str, str]:
  """Kinds of models -> what texts call them; of honest clients where some are bad."""
  if has_honest(table):
    return dict(zip(_HONEST, ('fine-tuned, honest', 'deployed, honest'), strict=True))
  return dict(zip(_KINDS, ('fine-tuned', 'deployed'), strict=True))


def _mark(row: dict[str, Any]) -> str:
  """The mark of a method some of whose runs are of earlier code."""
  return ' †' if row['earlier_code'] else ''


def of_seeds(table: Table) -> list[str]:
  """Sentence on how many seeds the figures of a table are of, and on the deviation."""
  counts = sorted({n for row in table if (n := row['seeds'] - row['diverged'])})
  if counts in ([], [1]):
    return ['Metrics are of one seed.'] * len(counts)
  several = ' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))
  return [f'Metrics are mean and sample standard deviation over {several} seeds.']


def _notes(table: Table) -> list[str]:
  """Notes on the methods of a table, each sentence once."""
  said = [f'{row["method"]}: {note}' for row in table for note in row['notes']]
  lines = of_seeds(table)
  if any(0 < row['diverged'] < row['seeds'] for row in table):
    lines.append('* without the seeds that diverged.')
  if untested := max((row['untested'] for row in table), default=0):
    lines.append(f'{untested} clients without test examples are left out.')
  lines += [REPORTS[row['report']] for row in table]
  if _targets(table):
    of = _task(table).primary.label
    lines.append(f'Rounds to a target are of the deployed micro {of}.')
  return list(dict.fromkeys([*lines, *said]))


def as_markdown(table: Table) -> str:
  """The table as Markdown."""
  kinds, last = _kinds(table), _last(table, ' ± ')
  heads = [
    in_markdown(f'{kind.replace("_", " ")} {_heading(_task(table), column)}')
    for kind in kinds
    for column in _columns(table)
  ]
  names = [in_markdown(row['method']) + _mark(row) for row in table]
  rows = zip(names, _cells(table, kinds, ' ± '), *last.values(), strict=True)
  lines = markdown(
    ['method', *heads, *last], [[name, *cells, *more] for name, cells, *more in rows]
  )
  lines += [f'\n{in_markdown(note, 2000)}' for note in _notes(table)]
  return '\n'.join(lines) + '\n'


def as_latex(table: Table) -> str:
  """The metrics of each kind of models as a LaTeX tabular.

  Where some clients are bad, the figures are those of the honest ones.
  """
  task, columns, named = _task(table), _columns(table), _named_kinds(table)
  if 'unseen' in _kinds(table):
    named['unseen'] = 'unseen clients'
  width = len(columns)
  groups = [rf'\multicolumn{{{width}}}{{c}}{{{in_latex(of)}}}' for of in named.values()]
  heads = [in_latex(_heading(task, c)).replace('m', 'M', 1) for c in columns]
  lines = [
    rf'\begin{{tabular}}{{l{"c" * width * len(named)}}}',
    r'\hline',
    rf' & {" & ".join(groups)} \\',
    rf'Method & {" & ".join(heads * len(named))} \\',
    r'\hline',
  ]
  for row, cells in zip(table, _cells(table, named, r'$\pm$'), strict=True):
    mark = _mark(row).replace('†', r'$^\dagger$')
    lines.append(rf'{in_latex(row["method"])}{mark} & {" & ".join(cells)} \\')
  notes = [in_latex(note, 2000).replace('†', r'$^\dagger$') for note in _notes(table)]
  notes = [rf'\par {{\footnotesize {note}}}' for note in notes]
  return '\n'.join([*lines, r'\hline', r'\end{tabular}', *notes]) + '\n'


def as_csv(table: Table) -> str:
  """The table as CSV: means and standard deviations in columns of their own."""
  keys = [f'{kind}_{column}' for kind in _kinds(table) for column in _columns(table)]
  heads = [f'{key}_{part}' for key in keys for part in ('mean', 'std')]
  rounds = {k: x for k, x in _last(table, ' ± ').items() if k.startswith('rounds to')}
  rows = [
    [
      printable(row['method'], 255),
      row['seeds'],
      row['diverged'],
      *(x for key in keys for x in row[key] or (None, None)),
      *(row[name] for name in (*AGREEMENTS, 'seconds_per_round', 'untested')),
      ' '.join(row['notes']),
      row['report'],
      *(row.get(name) for name in _cost_columns(table)),
      *more,
    ]
    for row, *more in zip(table, *rounds.values(), strict=True)
  ]
  last = [*AGREEMENTS, 'seconds_per_round', 'clients_without_test_examples', 'notes']
  last += ['report', *_cost_columns(table), *rounds]
  return csv_text(['method', 'seeds', 'diverged', *heads, *last], rows)


def as_text(table: Table) -> str:
  """The table for a terminal: the figures of the fine-tuned and deployed models.

  Where some clients are bad, the figures are those of the honest ones.
  """
  named, columns, last = _named_kinds(table), _columns(table), _last(table, '±')
  groups = [text for of in named.values() for text in (of, *[''] * (len(columns) - 1))]
  heads = [_heading(_task(table), column) for column in columns] * len(named)
  names = [printable(row['method'], 255) + _mark(row) for row in table]
  cells = zip(names, _cells(table, named, '±'), *last.values(), strict=True)
  rows = [
    ['', *groups, *[''] * len(last)],
    ['method', *heads, *last],
    *([name, *figures, *more] for name, figures, *more in cells),
  ]
  notes = [printable(note, 2000) for note in _notes(table)]
  return '\n'.join(aligned(rows, [0]) + notes)


def write(table: Table, workdir: pathlib.Path, sections: Sequence[str] = ()) -> None:
  """Writes table.md, with further sections of Markdown, table.csv and table.tex."""
  markdown = '\n'.join([as_markdown(table), *filter(None, sections)])
  write_atomically(workdir / 'table.md', markdown)
  write_atomically(workdir / 'table.csv', as_csv(table))
  write_atomically(workdir / 'table.tex', as_latex(table))
