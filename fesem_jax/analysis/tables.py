"""The table of a comparison: figures of methods over seeds, the best ones marked."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.evaluation import paired
from fesem_jax.evaluation.paired import Summaries, task_of
from fesem_jax.run.results.curves import (
  DATA_SINCE,
  ON_VALIDATION,
  REPORTS,
)
from fesem_jax.tasks import Task
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Cell, Column, Table, cell

# Columns that may be asked for -> heading of those that are a group.
COLUMNS = {
  'deployed': 'deployed', 'finetuned': 'fine-tuned', 'unseen': 'unseen clients',
  'server': 'server test', 'clusters': '', 'trained': 'deployed, trained clients',
  'backdoor': '',
}  # fmt: skip
_KINDS = ('deployed', 'finetuned')

# How well clusters agree with the true ones, as tables show it.
AGREEMENTS = ('ari', 'ami')

# One dict for each method; see `over_seeds`.
Rows = list[dict[str, Any]]


def mean_and_std(
  values: list[float], factor: float = 100.0
) -> tuple[float, float | None]:
  """Mean and sample standard deviation (None for one seed), by default in percent."""
  scaled = factor * np.array(values)
  return float(scaled.mean()), float(scaled.std(ddof=1)) if len(values) > 1 else None


def over_seeds(
  summaries: Summaries, report: str = 'last', oracle: str = '', correct: str = 'none'
) -> Rows:
  """Aggregates the seeds of each method.

  The figures are those of `report`, one of `curves.REPORTS`; tables say so. The method
  `oracle` is not among those that may be the best; for `correct` see `paired.best_of`.

  Each row has the label ('method'), the name of the 'task', the number of 'seeds' and
  how many 'diverged'; 'best', name of a column -> 'best' or 'equal', see
  `paired.best_of`; the names of the 'metrics' of the users' own;
  '{kind}_{column}' for each column of `tasks.columns_of`, (mean, standard deviation),
  accuracies and F1 in percent, where kind is finetuned, deployed, unseen, server,
  honest_finetuned or honest_deployed; the means 'ari' and 'ami', of the honest clients
  where some are bad; the median 'seconds_per_round'; the mean 'gigabytes' that a run
  sends, 10^9 bytes both ways, and 'simulated_hours' that it takes on devices of a
  profile, None where a seed does not say; the largest 'epsilon'; the mean success of a
  'backdoor', and of clients whose personal models have 'trained', in percent, with
  'trained_deployed_{column}' of these; 'untested', clients without test examples;
  whether it is the 'oracle'; of how many clients 'finetuning_failed', in all seeds;
  'report'; 'evaluated_on', '' for test
  examples; 'data_since', the rounds since which the data of its runs do not change;
  'ended_early', the last rounds of runs that did not go on to the end;
  'server_centers', the first metric of each center on the test set of the server; and
  'rounds_to', for each target of `curves.rounds_to_targets` the 'target', of how many
  'seeds' it is known whether the deployed models 'reached' it, as they do not where a
  run diverged, how many did, and (mean, standard deviation) of their 'rounds'. Figures
  that no seed has are None.
  """
  task = task_of(summaries.values())
  finished = [s for runs in summaries.values() for s in runs if s is not None]
  metrics = tasks.own_metrics(task, (s['deployed'] for s in finished))
  some_are_bad = any(s.get('honest') for s in finished)
  out = [
    _of_method(label, runs, task, metrics, some_are_bad)
    | {'report': report, 'correct': correct, 'oracle': label == oracle}
    for label, runs in summaries.items()
  ]
  competing = {label: runs for label, runs in summaries.items() if label != oracle}
  # Of metrics of a user's own it is not known whether more or less of them is better.
  groups = ('', 'honest_') if some_are_bad else ('',)
  for of, kind, column in itertools.product(groups, _KINDS, task.columns):
    of_seeds = {
      label: [_score(s, of, kind, column) for s in runs]
      for label, runs in competing.items()
    }
    marks = paired.best_of(of_seeds, task.figure(column).better, correct)
    for row in out:
      if row['method'] in marks:
        row['best'][f'{of}{kind}_{column}'] = marks[row['method']]
  return out


def _of_method(
  label: str,
  runs: Sequence[dict[str, Any] | None],
  task: Task,
  metrics: Sequence[str],
  some_are_bad: bool,
) -> dict[str, Any]:
  """The row of a method; see `over_seeds`."""
  done = [s for s in runs if s is not None]
  row: dict[str, Any] = {'method': label, 'task': task.name, 'seeds': len(runs)}
  row |= {'diverged': len(runs) - len(done), 'metrics': metrics, 'best': {}}
  # Of a run without bad clients, all are honest.
  honest = [s.get('honest') or s for s in done] if some_are_bad else []
  for of, scores, kinds in (
    ('', done, (*_KINDS, 'unseen', 'server', 'trained_deployed')),
    ('honest_', honest, _KINDS),
  ):
    for kind, column in itertools.product(kinds, tasks.columns_of(task, metrics)):
      values = [s[kind][column] for s in scores if column in (s.get(kind) or {})]
      factor = task.figure(column).factor
      row[f'{of}{kind}_{column}'] = mean_and_std(values, factor) if values else None
  for name in AGREEMENTS:
    agreements = [(s.get('honest') or s['clusters'] or {}).get(name) for s in done]
    known = [a for a in agreements if a is not None]
    row[name] = float(np.mean(known)) if known else None
  seconds = [s['timing']['seconds_per_round'] for s in done]
  seconds = [s for s in seconds if s is not None]
  row['seconds_per_round'] = float(np.median(seconds)) if seconds else None
  row |= _costs(done)
  row['untested'] = max((s['clients_without_test_examples'] for s in done), default=0)
  row['server_centers'] = _centers(done, task)
  row['finetuning_failed'] = sum(s.get('finetuning_failed') or 0 for s in done)
  row['evaluated_on'] = next((s.get('evaluated_on', '') for s in done), '')
  row[DATA_SINCE] = sorted({s.get(DATA_SINCE, 0) for s in done})
  early = [s for s in done if s.get('ended', 'finished') != 'finished']
  row['ended_early'] = sorted(s['rounds'] for s in early)
  row['rounds_to'] = _rounds_to(done, row['diverged'])
  return row


def _centers(done: list[dict[str, Any]], task: Task) -> str:
  """The first metric of each center on the server's test set, from the best one.

  Means over the seeds of each place in this order; '' without several centers.
  """
  each = [(s.get('server') or {}).get('clusters') for s in done]
  if not each or None in each or len({len(centers) for centers in each}) > 1:
    return ''
  figure, column = task.primary, task.primary_column
  values = [sorted((c[column] for c in s), key=figure.better)[::-1] for s in each]
  means = figure.factor * np.mean(values, axis=0)
  return '/'.join(f'{mean:.{figure.digits}f}' for mean in means)


def has_figures(row: Mapping[str, Any]) -> bool:
  """True if a row has the figures of a seed: not all have diverged."""
  return row['diverged'] < row['seeds']


def lacks_seeds(row: Mapping[str, Any]) -> bool:
  """True if figures of a row are of some seeds, as the others diverged."""
  return 0 < row['diverged'] < row['seeds']


def fewer_seeds(by_method: Sequence[Mapping[str, Any]]) -> list[str]:
  """Sentence on methods whose figures are of some 'seeds' and not all 'of_seeds'."""
  fewer = [
    f'{row["method"]} {row["seeds"]} of {row["of_seeds"]}'
    for row in by_method
    if row['seeds'] < row['of_seeds']
  ]
  return [f'Seeds of which figures are known: {", ".join(fewer)}.'] * bool(fewer)


def _score(summary: Any, of: str, kind: str, column: str) -> float | None:
  """A figure of a run; None where it diverged, or lacks it."""
  held = summary and ((of and summary.get('honest')) or summary)
  return held[kind].get(column) if held else None


def _costs(done: list[dict[str, Any]]) -> dict[str, float | None]:
  """The entries of what a method's finished runs have sent, and spent of privacy."""

  def mean(names: Sequence[str], divisor: float) -> float | None:
    each = [[(s.get('costs') or {}).get(name) for name in names] for s in done]
    if not each or any(None in of_run for of_run in each):
      return None
    return float((np.array(each, float).sum(axis=1) / divisor).mean())

  def of_all(name: str) -> list[float]:
    values = [s.get(name) for s in done]
    return [] if None in values else [float(v) for v in values if v is not None]

  def percent(name: str) -> float | None:
    values = of_all(name)
    return 100 * float(np.mean(values)) if values else None

  first = [(s.get('costs') or {}).get('start') for s in done]
  starts = [sum(each.values()) / 1e9 for each in first if each]
  return {
    'gigabytes': mean(('bytes_down', 'bytes_up'), 1e9),
    'start_gigabytes': float(np.mean(starts)) if starts else None,
    'simulated_hours': mean(('simulated_seconds',), 3600.0),
    'epsilon': max(of_all('epsilon'), default=None),
    'backdoor': percent('backdoor_success'),
    'trained': percent('trained'),
  }


def _task(table: Rows) -> Task:
  """The task of a table's methods."""
  return tasks.of(table[0]) if table else tasks.CLASSIFICATION


def _columns(table: Rows) -> tuple[str, ...]:
  """The columns of the task, then those of metrics of the user's own."""
  return tasks.columns_of(_task(table), table[0]['metrics'] if table else ())


def _heading(task: Task, column: str) -> str:
  """Heading of a column, e.g. 'micro-acc'."""
  return f'{column.split("_", 1)[0]}-{task.figure(column).heading}'


def _rounds_to(done: list[dict[str, Any]], diverged: int) -> list[dict[str, Any]]:
  """The entry 'rounds_to' of a method's finished runs; see `over_seeds`."""
  by_target: dict[float, list[float | None]] = {}
  for summary in done:
    for each in summary.get('rounds_to_target', []):
      by_target.setdefault(each['target'], []).append(each['deployed'])
  rows = []
  for target, rounds in by_target.items():
    known = [r for r in rounds if r is not None]
    mean = mean_and_std(known, 1.0) if known else None
    of_seeds = {'reached': len(known), 'seeds': len(rounds) + diverged}
    rows.append({'target': target, **of_seeds, 'rounds': mean})
  return rows


def seeds_note(table: Rows) -> list[str]:
  """Sentence on how many seeds the figures of a table are of, and on the deviation."""
  counts = sorted({n for row in table if (n := row['seeds'] - row['diverged'])})
  if counts in ([], [1]):
    return ['Metrics are of one seed.'] * len(counts)
  several = ' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))
  return [f'Metrics are mean and sample standard deviation over {several} seeds.']


def reports_note(table: Rows) -> list[str]:
  """Sentences on the rounds and the examples that the figures of a table are of."""
  sentences = list(dict.fromkeys(REPORTS[row['report']] for row in table))
  measured = [row for row in table if has_figures(row)]
  held_out = [row['method'] for row in measured if row.get('evaluated_on')]
  if held_out and len(held_out) < len(measured):
    which = ', '.join(dict.fromkeys(held_out))
    sentences.append(f'Those of {which} are of validation examples.')
  else:
    sentences += [ON_VALIDATION] * bool(held_out)
  return sentences


def diverged_note(table: Rows) -> list[str]:
  """Sentence on the mark of rows that lack seeds; [] without any."""
  return ['* without the seeds that diverged.'] * any(map(lacks_seeds, table))


def _left_out(table: Rows) -> list[str]:
  """Line on what the figures of a table leave out; [] for nothing."""
  sentences = diverged_note(table)
  if untested := max((row['untested'] for row in table), default=0):
    sentences.append(f'{untested} clients without test examples are left out.')
  return [' '.join(sentences)] * bool(sentences)


def has_honest(table: Rows) -> bool:
  """True if some clients of a table are bad."""
  return any(row[f'honest_deployed_{_task(table).primary_column}'] for row in table)


def _some_untrained(table: Rows) -> bool:
  """True if some personal models of a table have never been trained."""
  return any(row['trained'] not in (None, 100) for row in table)


def whole(table: Rows) -> Table:
  """Every figure of the methods as one table, for CSV."""
  task, columns = _task(table), _columns(table)
  honest = ('honest_',) if has_honest(table) else ()
  unseen = any(row[f'unseen_{task.primary_column}'] for row in table)
  kinds = [f'{of}{kind}' for of in ('', *honest) for kind in _KINDS]
  server = any(row[f'server_{task.primary_column}'] for row in table)
  kinds += ['unseen'] * unseen + ['server'] * server
  kinds += ['trained_deployed'] * _some_untrained(table)
  shown = [Column('seeds', 'seeds', 'd'), Column('diverged', 'diverged', 'd')]
  for kind in kinds:
    plain = kind.removeprefix('honest_').removesuffix('_deployed')
    group = COLUMNS[plain] + (', honest' if kind != plain else '')
    shown += [
      Column(
        f'{kind}_{c}', _heading(task, c), f'.{task.figure(c).digits}f', group, True
      )
      for c in columns
      if kind != 'server' or c.startswith('micro_')
    ]
  if any(row['server_centers'] for row in table):
    shown.append(Column('server_centers', 'each center', group=COLUMNS['server']))
  shown += [Column(name, name.upper(), 'z.2f') for name in AGREEMENTS]
  if _some_untrained(table):
    shown.append(Column('trained', 'trained %', '.0f'))
  if any(row['backdoor'] is not None for row in table):
    shown.append(Column('backdoor', 'backdoor %', '.1f'))
  shown += [
    Column(name, '')
    for name in ('report', 'evaluated_on', 'clients_without_test_examples')
  ]
  rows = [[row['method'], *(_cell(row, c) for c in shown)] for row in table]
  return Table([Column('method', 'method'), *shown], rows, label='methods')


def _cell(row: dict[str, Any], column: Column) -> Any:
  """A figure of a method, see `whole`."""
  if column.key == 'clients_without_test_examples':
    return row['untested']
  if column.key == 'evaluated_on':
    return row['evaluated_on'] or 'test' * has_figures(row)
  value = row[column.key]
  if not column.spread:
    return value if column.form in ('', 'd') else cell(value)
  task = tasks.of(row)
  if value is None:
    known = row[f'deployed_{task.primary_column}']
    why = 'diverged' if row['diverged'] else 'not run'
    return Cell(None, instead='' if known else why)
  mark = row['best'].get(column.key)
  after = '*' * bool(row['diverged']) + '°' * (mark == 'equal')
  return cell(value, best=mark == 'best', after=after)


def scores(
  table: Rows, columns: Sequence[str] = (), metrics: Sequence[str] = ()
) -> Table:
  """The figures of methods that readers are shown.

  Args:
    table: of `over_seeds`.
    columns: of `COLUMNS`; none are those of the deployed models, of unseen clients,
      clusters and the backdoor, where there are any. Where some clients are bad, the
      figures are those of the honest ones.
    metrics: such as micro_accuracy; none are all of the task.

  Raises:
    UserError: on a column or metric that the methods do not have.
  """
  check_columns(columns, metrics, _columns(table))
  wanted = columns or [name for name in COLUMNS if name != 'finetuned']
  of = 'honest_' if has_honest(table) else ''
  shown = {'method'}
  for kind in ('deployed', 'finetuned', 'unseen', 'server'):
    if kind in wanted:
      prefix = of if kind in _KINDS else ''
      shown |= {f'{prefix}{kind}_{c}' for c in metrics or _columns(table)}
  if 'clusters' in wanted:
    shown |= {
      name for name in AGREEMENTS if any(row[name] is not None for row in table)
    }
  shown |= {'backdoor', 'trained'} & {*wanted}
  shown |= {'server_centers'} if 'server' in wanted else set()
  if 'trained' in wanted:
    shown |= {f'trained_deployed_{c}' for c in metrics or _columns(table)}
  kept = whole(table).where(lambda c: c.key in shown)
  best = any(row['best'].get(key) for row in table for key in shown)
  return dataclasses.replace(
    kept,
    caption=' '.join([*seeds_note(table), *reports_note(table)]),
    best=paired.best_rule(table[0]['correct'], any(r['oracle'] for r in table))
    if best
    else '',
    notes=_left_out(table),
  )


def check_columns(
  columns: Sequence[str], metrics: Sequence[str], known: Sequence[str] = ()
) -> None:
  """Raises `UserError` on columns or metrics that no table has.

  `known` are the metrics of the methods; none are not checked.
  """
  for name in columns:
    check(name in COLUMNS, f'columns: unknown {name!r}; expected {", ".join(COLUMNS)}')
  for name in metrics if known else ():
    check(name in known, f'metric: unknown {name!r}; expected {", ".join(known)}')
