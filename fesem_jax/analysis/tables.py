"""Tables of methods over seeds, computed from the frames of their runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fesem_jax import algorithms, tasks
from fesem_jax.evaluation.paired import LEVEL, Difference, holm, paired_difference
from fesem_jax.run.results.client_table import counted
from fesem_jax.run.results.curves import REPORTS
from fesem_jax.run.results.frames import Frames
from fesem_jax.tasks import Figure, Task
from fesem_jax.utils import display
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.text_tables import Table, number, spread

if TYPE_CHECKING:
  from pandas import DataFrame, Series  # Slow to import.

# Groups of columns that may be asked for -> their headings.
COLUMNS = {
  'deployed': 'deployed', 'finetuned': 'fine-tuned', 'unseen': 'unseen clients',
  'server': 'server test', 'clusters': 'clusters',
  'trained': 'deployed, trained clients', 'backdoor': 'backdoor',
}  # fmt: skip
_KINDS = ('deployed', 'finetuned')
_SCORES = {kind: kind for kind in (*_KINDS, 'unseen', 'server')}
_SCORES['trained'] = 'trained_deployed'
_AGREEMENTS = ('ari', 'ami')
_KNOWN = {
  figure.name: figure
  for task in (*tasks.TASKS.values(), tasks.OWN_LOSS)
  for figure in task.figures
} | {
  name: Figure(name, name.upper(), name.upper(), percent=False, higher_is_better=True)
  for name in ('ari', 'ami', 'nmi')
}
# Settings that differ by themselves between methods.
_OF_METHODS = ('algorithm', 'num_clusters', 'seed', 'own_code', 'data_digest')


def metric(column: str) -> Figure:
  """The metric of a column, such as 'deployed.micro_f1' or 'finetuned_rmse'."""
  name = column.rpartition('.')[2]
  for prefix in ('pooled_', 'micro_', 'macro_', 'deployed_', 'finetuned_'):
    name = name.removeprefix(prefix)
  default = Figure(name, name, name, percent=False, higher_is_better=True)
  return _KNOWN.get(name, default)


def heading(column: str) -> str:
  """The head of a column: 'micro-acc (%)' of 'deployed.micro_accuracy'."""
  figure, name = metric(column), column.rpartition('.')[2]
  scope = name.removesuffix(figure.name).replace('_', '-')
  return f'{scope}{figure.heading}{" (%)" * figure.percent}'


def task_of(runs: 'DataFrame') -> Task:
  """The task of runs; classification where none has finished."""
  names = runs['task'].dropna().tolist() if 'task' in runs else []
  return tasks.of({'task': names[0]}) if names else tasks.CLASSIFICATION


def score(runs: 'DataFrame') -> str:
  """The column of `reported` runs that ranks methods."""
  return f'deployed.{task_of(runs).primary_column}'


def has_honest(runs: 'DataFrame') -> bool:
  """True if some clients of the runs are bad."""
  return any(name.startswith('honest.') for name in runs)


def reported(runs: 'DataFrame', report: str = 'last') -> 'DataFrame':
  """Runs whose scores are of honest clients, and of the rounds that `report` names.

  `report` is one of `curves.REPORTS`. Runs without bad clients keep their scores.
  """
  check_choice('report', report, tuple(REPORTS))
  above = '' if report == 'last' else f'reports.{report}.'
  changed: dict[str, Series] = {}
  for prefix in dict.fromkeys((above, f'{above}honest.')):
    kinds = tuple(f'{prefix}{kind}.' for kind in _KINDS)
    for name in (c for c in runs if c.startswith(kinds) and not c.endswith('.round')):
      plain = name.removeprefix(prefix)
      changed[plain] = runs[name].fillna(changed.get(plain, runs.get(plain)))
  for name in (n for n in ('ari', 'ami', 'nmi') if f'honest.{n}' in runs):
    values = runs.get(f'clusters.{name}', runs[f'honest.{name}'])
    changed[f'clusters.{name}'] = runs[f'honest.{name}'].fillna(values)
  return runs.assign(**changed)


def score_columns(runs: 'DataFrame', kind: str = 'deployed') -> list[str]:
  """The columns of runs that have the metrics of a kind of models, without losses."""
  names = [c.removeprefix(f'{kind}.') for c in runs if c.startswith(f'{kind}.')]
  task = task_of(runs)
  shown = tasks.columns_of(task, tasks.own_metrics(task, [dict.fromkeys(names)]))
  pooled = [name for name in names if name.startswith('pooled_')]
  return [f'{kind}.{name}' for name in (*shown, *pooled) if name in names]


def over_seeds(
  runs: 'DataFrame', columns: Sequence[str], by: str | list[str] = 'method'
) -> 'DataFrame':
  """Mean, sample standard deviation and count of columns: (column, 'mean'), ...

  Accuracies and other shares are in percent.
  """
  numbers = runs[list(columns)].astype(float)
  keys = [runs[name] for name in ([by] if isinstance(by, str) else by)]
  frame = numbers.groupby(keys, observed=True).agg(['mean', 'std', 'count'])
  factors = [1 if part == 'count' else metric(c).factor for c, part in frame.columns]
  return frame * factors


def differences(
  runs: 'DataFrame', column: str = '', reference: str = '', correct: str = 'none'
) -> 'DataFrame':
  """Each method minus the reference, paired over seeds.

  Args:
    runs: of `reported`.
    column: of the metric; '' ranks methods.
    reference: label of a method; '' is that with the best mean.
    correct: how p values are corrected, of `paired.CORRECTIONS`.

  Returns:
    A row a method: `difference`, the ends `low` and `high` of Student's 95 % interval,
    `p` and the number of `seeds`; `attrs` has the `reference` and the `column`.
  """
  import pandas

  column = column or score(runs)
  figure, index = metric(column), pandas.CategoricalIndex([], name='method')
  rows: dict[str, Any] = {}
  if column in runs and runs[column].notna().any():
    measured = runs[runs[column].notna()]
    table = figure.factor * measured.pivot(
      index='seed', columns='method', values=column
    ).astype(float)
    ranks = table.mean().map(figure.better)
    reference = reference or str(ranks.idxmax())
    for method in table.columns.drop(reference, errors='ignore'):
      if reference in table:
        pairs = table[[method, reference]].dropna()
        if len(pairs):
          test = paired_difference(pairs[method].tolist(), pairs[reference].tolist())
          rows[method] = (*test, len(pairs))
  names = ['difference', *Difference._fields[1:], 'seeds']
  frame = pandas.DataFrame.from_dict(rows, orient='index', columns=names)
  if correct == 'holm':
    frame['p'] = holm(frame['p'].tolist())
  frame = frame.rename_axis(index.name)
  frame.attrs = {'reference': reference, 'column': column}
  return frame


def marks(
  runs: 'DataFrame', column: str, oracle: str = '', correct: str = 'none'
) -> dict[str, str]:
  """Method -> 'best' for the best mean, 'equal' if it does not differ from that.

  The oracle takes no part. Empty unless the best one has been compared over two seeds.
  """
  against = differences(runs[runs['method'] != oracle], column, correct=correct)
  several = against[against['seeds'] > 1]
  equal = several.index[~(several['p'] < 1 - LEVEL)]
  best = {against.attrs['reference']: 'best'} if len(several) else {}
  return best | dict.fromkeys(equal, 'equal')


def costs(runs: 'DataFrame') -> 'DataFrame':
  """Costs of methods, NaN where a finished run lacks them.

  Columns: median `seconds_per_round`; mean bytes both ways of a run, `sent`, and before
  the first round, `start`; mean `simulated_seconds`; the largest `epsilon`.
  """
  parts = {
    'seconds_per_round': (['timing.seconds_per_round'], 'median'),
    'sent': (['costs.bytes_down', 'costs.bytes_up'], lambda x: x.mean(skipna=False)),
    'start': (['costs.start.bytes_down', 'costs.start.bytes_up'], 'mean'),
    'simulated_seconds': (
      ['costs.simulated_seconds'],
      lambda x: x.mean(skipna=False),
    ),
    'epsilon': (['epsilon'], lambda x: x.max(skipna=False)),
  }
  done = runs[runs['status'].str.match('finished|ended')]
  columns = {
    name: done.reindex(columns=names).astype(float).sum(axis=1, skipna=False)
    for name, (names, _) in parts.items()
  }
  groups = done[['method']].assign(**columns).groupby('method', observed=True)
  return groups.agg({name: how for name, (_, how) in parts.items()})


def client_changes(clients: 'DataFrame', base: str, column: str) -> 'DataFrame':
  """Clients that gain, are equal and lose against the method `base`.

  `column` is their metric, such as 'deployed_accuracy'. Returns for each other method
  the mean and deviation over seeds, ('gain', 'mean'), ..., of honest clients.
  """
  import pandas

  honest = counted(clients) if len(clients) else clients
  if column not in honest or honest.duplicated(['method', 'seed', 'client']).any():
    return pandas.DataFrame()
  wide = honest.pivot(index=['seed', 'client'], columns='method', values=column)
  if base not in wide:
    return pandas.DataFrame()
  sign = 1 if metric(column).higher_is_better else -1
  gain = sign * wide.drop(columns=base).sub(wide[base], axis=0)
  known = gain.notna().groupby('seed').any()
  parts = {}
  for name, holds in {'gain': gain > 0, 'equal': gain == 0, 'lose': gain < 0}.items():
    counts = holds.groupby('seed').sum().where(known)
    parts[name] = counts.agg(['mean', 'std']).T
  return pandas.concat(parts, axis=1)


class Ranks(NamedTuple):
  """Ranks of methods over data sets (Demsar, JMLR 2006)."""

  mean: 'Series'  # of each method; 1 is the best
  critical_difference: float  # of Nemenyi's test at 5 %
  p: float  # of Friedman's test that all methods are alike


def ranks(scores: 'DataFrame', higher_is_better: bool = True) -> Ranks:
  """Compares methods over data sets.

  `scores` has a row a data set and a column a method, at least three of each. Methods
  whose mean ranks differ by the critical difference or more differ at the 5 % level.
  """
  from scipy import stats

  count, methods = scores.shape
  check(min(count, methods) > 2, 'scores: needs at least 3 data sets and 3 methods')
  mean = scores.rank(axis=1, ascending=not higher_is_better).mean()
  quantile = stats.studentized_range.ppf(LEVEL, methods, np.inf) / np.sqrt(2)
  difference = quantile * np.sqrt(methods * (methods + 1) / (6 * count))
  p = stats.friedmanchisquare(*(scores[method] for method in scores)).pvalue
  return Ranks(mean, float(difference), float(p))


def label_of(runs: 'DataFrame', algorithm: str) -> str:
  """Label of the first method whose runs are of an algorithm; '' if none is."""
  names = runs.get('config.algorithm', runs.get('algorithm'))
  labels = [] if names is None else runs['method'][names == algorithm].tolist()
  return str(labels[0]) if labels else ''


def settings(runs: 'DataFrame', tuned: Sequence[str] = ()) -> dict[str, str]:
  """Method -> its settings that differ between methods, and those `tuned`.

  Only settings that all methods have count. What a label says is left out, and what a
  method has by default.
  """
  shown: dict[str, list[str]] = {str(m): [] for m in runs['method'].unique()}
  names = runs.get('config.algorithm', runs['method'].astype(str))
  defaults = {
    str(method): algorithms.options(name) if name in algorithms.METHODS else {}
    for method, name in zip(runs['method'], names, strict=True)
  }
  for column in (c for c in runs if c.startswith('config.')):
    name = column.removeprefix('config.')
    texts = runs[column].map(display.text_of, na_action='ignore')
    by_seed = texts.groupby(runs['seed'])
    differs = texts.notna().all() and (by_seed.nunique() > 1).any()
    if name in _OF_METHODS or not (differs or name in tuned):
      continue
    for method, values in texts.dropna().groupby(runs['method'], observed=True):
      text, options = '/'.join(values.unique()), defaults[str(method)]
      is_default = name in options and display.text_of(options[name]) == text
      if f'{name}=' not in str(method) and not (is_default and name not in tuned):
        shown[str(method)].append(f'{name}={text}')
  return {method: ', '.join(texts) for method, texts in shown.items()}


class _Columns:
  """Collects the cells of a table, those without any text left out."""

  def __init__(self, methods: Sequence[str]):
    import pandas

    index = pandas.Index(methods, name='method')
    self.cells, self.bold = (pandas.DataFrame(index=index) for _ in range(2))
    self.numbers = pandas.DataFrame(index=index)

  def add(
    self, group: str, head: str, texts: dict[str, str], best: Sequence[str] = ()
  ) -> None:
    """Adds a column by method, of which some are bold."""
    column = [texts.get(method, '') for method in self.cells.index]
    if any(column):
      self.cells[group, head] = column
      self.bold[group, head] = [method in best for method in self.cells.index]

  def add_spread(self, group: str, head: str, frame: 'DataFrame', form: str) -> None:
    """Adds means and deviations, columns of a frame by method."""
    rows = zip(frame.index, frame['mean'], frame['std'], strict=True)
    self.add(group, head, {m: spread(mean, std, form) for m, mean, std in rows})

  def add_numbers(self, group: str, head: str, values: 'Series', form: str) -> None:
    """Adds numbers by method."""
    self.add(group, head, {m: number(x, form) for m, x in values.items()})

  def keep(self, frame: 'DataFrame', prefix: str = '') -> None:
    """Adds columns of a frame by method to the numbers of CSV."""
    names = ['_'.join(c) if isinstance(c, tuple) else c for c in frame.columns]
    frame = frame.set_axis([f'{prefix}{name}' for name in names], axis=1)
    self.numbers = self.numbers.join(frame)

  def table(self, notes: Sequence[str]) -> Table:
    """The table of what was added."""
    import pandas

    columns = pandas.MultiIndex.from_tuples(self.cells.columns)
    cells, bold = (x.set_axis(columns, axis=1) for x in (self.cells, self.bold))
    return Table(cells, self.numbers, bold, notes)


def comparison(
  frames: Frames,
  *,
  reference: str = '',
  oracle: str = '',
  report: str = 'last',
  columns: Sequence[str] = (),
  metrics: Sequence[str] = (),
  correct: str = 'none',
  tuned: Sequence[str] = (),
) -> Table:
  """The table of methods over seeds.

  Args:
    frames: of their runs.
    reference: label of the method that others are compared with; '' is that with the
      best deployed metric of the task.
    oracle: label of the method that is told the true groups; '' finds it.
    report: which metrics are shown, of `curves.REPORTS`.
    columns: groups of columns, of `COLUMNS`; () is all but 'finetuned'.
    metrics: such as 'micro_accuracy'; () is all but 'pooled_macro_f1'. CSV has every
      column and metric.
    correct: how p values are corrected, of `paired.CORRECTIONS`.
    tuned: settings that were tuned, to be shown.

  Raises:
    UserError: on a column, metric or method that there is not.
  """
  runs = reported(frames.runs, report)
  methods = [
    str(m) for m in runs['method'].cat.categories if (runs['method'] == m).any()
  ]
  metric_names = [c.partition('.')[2] for c in score_columns(runs)]
  check_columns(columns, metrics, metric_names)
  check_reference(reference, methods)
  oracle = oracle or label_of(runs, 'oracle')
  shown = columns or [name for name in COLUMNS if name != 'finetuned']
  made, of = _Columns(methods), ', honest' * has_honest(runs)
  _add_scores(made, runs, shown, metrics, oracle, correct, of)
  against = differences(runs, '', reference, correct)
  made.keep(against, 'difference_')
  kinds = [k for k in _KINDS if k in shown or (k == 'deployed' and not columns)]
  for method in dict.fromkeys((against.attrs['reference'], oracle)):
    for kind in kinds if method else ():
      column = f'{kind}.{task_of(runs).primary_column}'
      _add_differences(made, differences(runs, column, method, correct), kind)
  _add_clients(made, frames.clients, runs)
  _add_costs(made, runs)
  made.add('', 'settings', settings(frames.runs, tuned))
  seeds = runs['seed'].nunique()
  counts = (
    runs.groupby('method', observed=True)['task'].count() if 'task' in runs else {}
  )
  if any(counts.get(method, 0) < seeds for method in methods):
    texts = {m: f'{counts.get(m, 0)} of {seeds}' for m in methods}
    made.add('', 'of seeds', texts)
  return made.table(_notes(runs, against, report, correct))


def check_columns(
  columns: Sequence[str], metrics: Sequence[str] = (), known: Sequence[str] = ()
) -> None:
  """Raises `UserError` on columns or metrics that no table has."""
  for name in columns:
    check_choice('columns', name, tuple(COLUMNS))
  for name in metrics:
    check_choice('metrics', name, tuple(known))


def check_reference(reference: str, labels: Sequence[str]) -> None:
  """Raises `UserError` unless the reference is empty or the label of a method."""
  if reference:
    check_choice('reference', reference, tuple(labels))


def _add_scores(
  made: _Columns,
  runs: 'DataFrame',
  shown: Sequence[str],
  metrics: Sequence[str],
  oracle: str,
  correct: str,
  of: str,
) -> None:
  """Adds metrics, agreement with the true clusters, and success of a backdoor."""
  task = task_of(runs)
  for group, kind in _SCORES.items():
    columns = score_columns(runs, kind)
    if group == 'trained' and not (runs.get('trained', np.ones(1)) < 1).any():
      continue
    if not columns:
      continue
    frame = over_seeds(runs, columns)
    made.keep(frame)
    names = [c.partition('.')[2] for c in columns if '.pooled_' not in c]
    for column in columns if group in shown else ():
      name = column.partition('.')[2]
      if name not in (metrics or names):
        continue
      by_method = frame[column]
      marked = {}
      if kind in _KINDS and name in task.columns:
        marked = marks(runs, column, oracle, correct)
      rows = zip(by_method.index, by_method['mean'], by_method['std'], strict=True)
      form = f'.{metric(column).digits}f'
      texts = {
        m: spread(mean, std, form) + '°' * (marked.get(m) == 'equal')
        for m, mean, std in rows
      }
      best = [m for m, mark in marked.items() if mark == 'best']
      made.add(COLUMNS[group] + of * (kind in _KINDS), heading(column), texts, best)
    if group == 'server' and group in shown and 'server.clusters' in runs:
      made.add(COLUMNS[group], 'each center', _centers(runs, task))
  for name in _AGREEMENTS:
    if f'clusters.{name}' in runs:
      frame = over_seeds(runs, [f'clusters.{name}'])
      made.keep(frame)
      if 'clusters' in shown:
        mean = frame[f'clusters.{name}', 'mean']
        made.add_numbers('clusters', name.upper(), mean, 'z.2f')
  for name, form in (('trained', '.0f'), ('backdoor', '.1f')):
    column = 'backdoor_success' if name == 'backdoor' else name
    if column in runs and (name == 'backdoor' or (runs[column] < 1).any()):
      mean = 100 * over_seeds(runs, [column])[column, 'mean']
      made.keep(mean.rename(f'{name}_mean').to_frame())
      if name in shown:
        made.add_numbers(COLUMNS[name], f'{name} %', mean, form)


def _centers(runs: 'DataFrame', task: Task) -> dict[str, str]:
  """Method -> the mean first metric of each center on the server, best first."""
  texts, figure, column = {}, task.primary, task.primary_column
  several = runs[runs['server.clusters'].notna()]
  for method, each in several.groupby('method', observed=True)['server.clusters']:
    values = [sorted((c[column] for c in s), key=figure.better)[::-1] for s in each]
    if len({len(centers) for centers in values}) == 1:
      means = figure.factor * np.mean(values, axis=0)
      texts[str(method)] = '/'.join(f'{mean:.{figure.digits}f}' for mean in means)
  return texts


def _add_differences(made: _Columns, against: 'DataFrame', kind: str) -> None:
  """Adds the differences to a reference; those that favor a method are bold."""
  if against.empty:
    return
  figure, reference = metric(against.attrs['column']), against.attrs['reference']
  group = f'{f"{COLUMNS[kind]} " * (kind != "deployed")}minus {reference}'
  form = f'+.{figure.digits + 1}f'
  favors = (against['p'] < 1 - LEVEL) & (against['difference'].map(figure.better) > 0)
  texts = {m: number(x, form) for m, x in against['difference'].items()}
  made.add(group, 'difference', texts, list(against.index[favors]))
  intervals = zip(against.index, against['low'], against['high'], strict=True)
  texts = {
    m: f'[{format(low, form)}, {format(high, form)}]'
    for m, low, high in intervals
    if low == low
  }
  made.add(group, '95 % interval', texts)
  made.add_numbers(group, 'p', against['p'], '.2g')


def _add_clients(made: _Columns, clients: 'DataFrame', runs: 'DataFrame') -> None:
  """Adds clients that gain and lose against FedAvg, and the worst tenth."""
  figure, base = task_of(runs).primary, label_of(runs, 'fed_avg')
  if base:
    changes = client_changes(clients, base, f'deployed_{figure.name}')
    for name in (
      dict.fromkeys(changes.columns.get_level_values(0)) if len(changes) else ()
    ):
      made.add_spread(f'clients against {base}', name, changes[name], '.1f')
    made.keep(changes)
  column = 'fairness.deployed.worst_decile'
  if column in runs:
    worst = figure.factor * over_seeds(runs, [column])[column][['mean', 'std']]
    made.keep(worst, 'worst_decile_')
    made.add_spread('clients', 'worst tenth', worst, f'.{figure.digits}f')


def _add_costs(made: _Columns, runs: 'DataFrame') -> None:
  """Adds seconds, bytes, epsilon, and rounds to targets."""
  spent = costs(runs)
  made.keep(spent)
  made.add_numbers('costs', 's/round', spent['seconds_per_round'], '.3g')
  for column, head in (('sent', ''), ('start', 'start ')):
    most = spent[column].max()
    if most > 0:
      unit, size = display.unit_of(most / 1e9, display.BYTES[1:])
      made.add_numbers('costs', f'{head}{unit}', spent[column] * size / 1e9, '.3g')
  most = spent['simulated_seconds'].max()
  if most > 0:
    unit, size = display.unit_of(most / 3600, display.HOURS)
    hours = spent['simulated_seconds'] * size / 3600
    made.add_numbers('costs', f'{unit} on devices', hours, '.3g')
  made.add_numbers('costs', 'epsilon', spent['epsilon'], '.3g')
  for column in (c for c in runs if c.startswith('rounds_to.')):
    target = float(column.removeprefix('rounds_to.'))
    groups = runs.groupby('method', observed=True)[column]
    reached = groups.agg(['mean', 'std', 'count']).astype(float)
    made.keep(reached, f'{column}_')
    texts = {}
    for method, (mean, std, count) in reached.iterrows():
      some = f' ({count:.0f} of {len(groups.get_group(method))})'
      text = spread(mean, std, '.1f') or 'not reached'
      texts[str(method)] = text + some * (0 < count < len(groups.get_group(method)))
    made.add('costs', f'rounds to {task_of(runs).primary.target(target)}', texts)


def _notes(
  runs: 'DataFrame', against: 'DataFrame', report: str, correct: str
) -> list[str]:
  """The two lines below a table."""
  seeds = runs['seed'].nunique()
  over = 'Mean ± sample standard deviation over' if seeds > 1 else 'Metrics of'
  first = f'{over} {seeds} seed{"s" * (seeds > 1)}, {REPORTS[report]}'
  if 'evaluated_on' in runs and (held_out := runs['evaluated_on'].notna()).any():
    methods = ', '.join(map(str, runs['method'][held_out].unique()))
    first += f', on validation examples{f" ({methods})" * (not held_out.all())}'
  if seeds > 1:
    holm_text = ", Holm's correction" * (correct == 'holm')
    first += f'; °: as the best (paired t-test, p ≥ {1 - LEVEL:.2g}{holm_text})'
  second = []
  if len(against):
    head = heading(against.attrs['column'])
    second.append(f'Differences of {head}, paired over seeds, with Student intervals.')
  second.append('Costs of a run: median seconds of a round, mean bytes.')
  untested = runs.get('clients_without_test_examples')
  if untested is not None and untested.max() > 0:
    second.append(f'{untested.max():.0f} clients without test examples are left out.')
  return [f'{first}.', *([' '.join(second)] if second else [])]
