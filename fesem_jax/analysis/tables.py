"""Tables of methods over seeds, computed from the frames of their runs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fesem_jax import algorithms, tasks
from fesem_jax.evaluation.curves import REPORTS
from fesem_jax.evaluation.paired import LEVEL, Difference, holm, paired_difference
from fesem_jax.run.results.client_table import counted
from fesem_jax.tasks import Metric, Task
from fesem_jax.utils.display import text_of
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.text_tables import BEST, EQUAL, Table, spread

if TYPE_CHECKING:
  from pandas import DataFrame, Series  # Slow to import.

# Groups of columns that may be asked for -> their headings.
COLUMNS = {
  'deployed': 'deployed', 'finetuned': 'fine-tuned', 'unseen': 'unseen clients',
  'server': 'server test', 'clusters': 'clusters', 'backdoor': 'backdoor',
}  # fmt: skip
_KINDS = ('deployed', 'finetuned')
_OTHERS = {
  'clusters': ['clusters.ari', 'clusters.ami'], 'backdoor': ['backdoor_success'],
}  # fmt: skip
_KNOWN = {
  measure.name: measure
  for task in (*tasks.TASKS.values(), tasks.OWN_LOSS)
  for measure in task.metrics
} | {
  name: Metric(name, name.upper(), name.upper(), percent=False, higher_is_better=True)
  for name in ('ari', 'ami', 'nmi')
}
_KNOWN['in_group'] = Metric('in_group', 'share', 'in its group', True, True)
_KNOWN['backdoor_success'] = Metric('backdoor_success', 'share', 'success', True, False)
# Settings that differ by themselves between methods.
_OF_METHODS = ('algorithm', 'num_clusters', 'seed', 'own_code', 'data_digest')


def metric(column: str) -> Metric:
  """The metric of a column, such as 'deployed.micro_f1' or 'finetuned_rmse'."""
  name = column.rpartition('.')[2]
  for prefix in ('pooled_', 'micro_', 'macro_', 'deployed_', 'finetuned_'):
    name = name.removeprefix(prefix)
  default = Metric(name, name, name, percent=False, higher_is_better=True)
  return _KNOWN.get(name, default)


def heading(column: str) -> str:
  """The head of a column: 'micro-acc (%)' of 'deployed.micro_accuracy'."""
  measure, name = metric(column), column.rpartition('.')[2]
  scope = name.removesuffix(measure.name).replace('_', '-')
  return f'{scope}{measure.heading}{" (%)" * measure.percent}'


def task_of(runs: 'DataFrame') -> Task:
  """The task of runs; classification where none has finished."""
  names = runs['task'].dropna().tolist() if 'task' in runs else []
  return tasks.of({'task': names[0]}) if names else tasks.CLASSIFICATION


def score(runs: 'DataFrame') -> str:
  """The column of `reported` runs that ranks methods."""
  return f'deployed.{task_of(runs).primary_column}'


def reported(runs: 'DataFrame', report: str = 'last') -> 'DataFrame':
  """Runs whose scores are of honest clients, and of the rounds that `report` names.

  `report` is one of `curves.REPORTS`. Runs without bad clients keep their scores.
  """
  check_choice('report', report, tuple(REPORTS))
  outer = '' if report == 'last' else f'reports.{report}.'
  changed: dict[str, Series] = {}
  for prefix in dict.fromkeys((outer, f'{outer}honest.')):
    kinds = tuple(f'{prefix}{kind}.' for kind in _KINDS)
    for name in (c for c in runs if c.startswith(kinds) and not c.endswith('.round')):
      plain = name.removeprefix(prefix)
      changed[plain] = runs[name].fillna(changed.get(plain, runs.get(plain)))
  for name in (n for n in ('ari', 'ami', 'nmi') if f'honest.{n}' in runs):
    values = runs.get(f'clusters.{name}', runs[f'honest.{name}'])
    changed[f'clusters.{name}'] = runs[f'honest.{name}'].fillna(values)
  return runs.assign(**changed)


def score_columns(runs: 'DataFrame', group: str = 'deployed') -> list[str]:
  """The columns of runs that a group of `COLUMNS` has, without losses."""
  if group in _OTHERS:
    return [c for c in _OTHERS[group] if c in runs and runs[c].notna().any()]
  prefixes = tuple(f'{group}.{scope}_' for scope in ('micro', 'macro', 'pooled'))
  names = [c for c in runs if c.startswith(prefixes)]
  has_loss = any(measure.name == 'loss' for measure in task_of(runs).metrics)
  return [c for c in names if has_loss or not c.endswith('_loss')]


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
  rows: dict[str, Any] = {}
  if column in runs and runs[column].notna().any():
    table = runs.pivot(index='seed', columns='method', values=column).astype(float)
    table = metric(column).factor * table.dropna(axis=1, how='all')
    ranks = table.mean().map(metric(column).better)
    reference = reference or str(ranks.idxmax())
    for method in table.columns.drop(reference) if reference in table else ():
      pairs = table[[method, reference]].dropna()
      if len(pairs):
        test = paired_difference(pairs[method].tolist(), pairs[reference].tolist())
        rows[method] = (*test, len(pairs))
  names = ['difference', *Difference._fields[1:], 'seeds']
  frame = pandas.DataFrame.from_dict(rows, orient='index', columns=names)
  if correct == 'holm':
    frame['p'] = holm(frame['p'].tolist())
  frame = frame.rename_axis('method')
  frame.attrs = {'reference': reference, 'column': column}
  return frame


def marks(
  runs: 'DataFrame', column: str, oracle: str = '', correct: str = 'none'
) -> dict[str, str]:
  """Method -> `BEST` for the best mean, `EQUAL` if it does not differ from that.

  The oracle takes no part. Empty unless the best one has been compared over two seeds.
  """
  against = differences(runs[runs['method'] != oracle], column, correct=correct)
  several = against[against['seeds'] > 1]
  equal = several.index[~(several['p'] < 1 - LEVEL)]
  best = {against.attrs['reference']: BEST} if len(several) else {}
  return best | dict.fromkeys(equal, EQUAL)


def costs(runs: 'DataFrame') -> 'DataFrame':
  """Costs of methods, NaN where a finished run lacks them.

  Columns: median `seconds_per_round`; mean bytes both ways of a run, `sent`, and before
  the first round, `start`; mean `simulated_seconds`; the largest `epsilon`.
  """
  done = runs[runs['status'].str.match('finished|ended')]
  ways = ('bytes_down', 'bytes_up')
  parts = {
    'seconds_per_round': ['timing.seconds_per_round'],
    'sent': [f'costs.{way}' for way in ways],
    'start': [f'costs.start.{way}' for way in ways],
    'simulated_seconds': ['costs.simulated_seconds'], 'epsilon': ['epsilon'],
  }  # fmt: skip
  columns = {
    name: done.reindex(columns=names).astype(float).sum(axis=1, skipna=False)
    for name, names in parts.items()
  }
  groups = done[['method']].assign(**columns).groupby('method', observed=True)
  frame = groups.agg(lambda x: x.mean(skipna=False))
  frame['epsilon'] = groups['epsilon'].agg(lambda x: x.max(skipna=False))
  return frame.assign(seconds_per_round=groups['seconds_per_round'].median())


def client_changes(clients: 'DataFrame', base: str, column: str) -> 'DataFrame':
  """Mean and deviation over seeds of honest clients that gain, are equal and lose."""
  import pandas

  honest = counted(clients) if len(clients) else clients
  if column not in honest or honest.duplicated(['method', 'seed', 'client']).any():
    return pandas.DataFrame()
  wide = honest.pivot(index=['seed', 'client'], columns='method', values=column)
  if base not in wide:
    return pandas.DataFrame()
  sign = 1 if metric(column).higher_is_better else -1
  gain = sign * wide.drop(columns=base).sub(wide[base], axis=0)
  is_measured = gain.notna().groupby('seed').any()
  parts = {}
  for name, mask in {'gain': gain > 0, 'equal': gain == 0, 'lose': gain < 0}.items():
    counts = mask.groupby('seed').sum().where(is_measured)
    parts[name] = counts.agg(['mean', 'std']).T
  return pandas.concat(parts, axis=1)


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
    texts = runs[column].map(text_of, na_action='ignore')
    by_seed = texts.groupby(runs['seed'])
    differs = texts.notna().all() and (by_seed.nunique() > 1).any()
    if name in _OF_METHODS or not (differs or name in tuned):
      continue
    for method, values in texts.dropna().groupby(runs['method'], observed=True):
      text, options = '/'.join(values.unique()), defaults[str(method)]
      is_default = name in options and text_of(options[name]) == text
      if f'{name}=' not in str(method) and not (is_default and name not in tuned):
        shown[str(method)].append(f'{name}={text}')
  return {method: ', '.join(texts) for method, texts in shown.items()}


class _Parts(NamedTuple):
  """Columns of a table: (group, head) -> texts by method."""

  cells: dict[tuple[str, str], dict[Any, str]]
  numbers: list['DataFrame']

  def keep(self, frame: 'DataFrame', prefix: str = '') -> None:
    """Adds columns of a frame by method to the numbers of CSV."""
    names = ['_'.join(c) if isinstance(c, tuple) else c for c in frame.columns]
    self.numbers.append(frame.set_axis([f'{prefix}{name}' for name in names], axis=1))


def table_of(compared: Any) -> Table:
  """The table of a comparison, see `Comparison.table`."""
  import pandas

  runs, correct = reported(compared.runs, compared.report), compared.correct
  index = pandas.Index(runs['method'].astype(str).unique(), name='method')
  for name in compared.columns:
    check_choice('columns', name, tuple(COLUMNS))
  check_choice('reference', compared.reference, (*index, ''))
  oracle = compared.oracle or label_of(runs, 'oracle')
  shown = compared.columns or [name for name in COLUMNS if name != 'finetuned']
  parts, against = _Parts({}, []), compared.differences
  for group in COLUMNS:
    _add_scores(parts, runs, group, oracle, correct, is_shown=group in shown)
  parts.keep(against, 'difference_')
  kinds = [kind for kind in _KINDS if kind in shown]
  for method in dict.fromkeys((against.attrs['reference'], oracle)):
    for kind in kinds if method else ():
      column = f'{kind}.{task_of(runs).primary_column}'
      _add_differences(parts, differences(runs, column, method, correct), kind)
  _add_clients(parts, compared.clients, runs)
  _add_costs(parts, runs)
  parts.cells['', 'settings'] = settings(compared.runs, compared.tuned)
  done, seeds = runs[runs.get('task', runs['seed']).notna()], runs['seed'].nunique()
  counts = done['method'].astype(str).value_counts().reindex(index, fill_value=0)
  if (counts < seeds).any():
    parts.cells['', 'of seeds'] = {m: f'{n} of {seeds}' for m, n in counts.items()}
  cells = pandas.DataFrame(parts.cells, index, dtype=object).fillna('')
  cells = cells.loc[:, (cells != '').any()]
  numbers = pandas.DataFrame(index=index).join(parts.numbers)
  return Table(cells, numbers, _notes(runs, against, compared), compared.caption)


def _add_scores(
  parts: _Parts,
  runs: 'DataFrame',
  group: str,
  oracle: str,
  correct: str,
  is_shown: bool,
) -> None:
  """Adds the columns of a group, with deviations if they are metrics of models."""
  columns, is_metric = score_columns(runs, group), group not in _OTHERS
  if not columns:
    return
  frame, title = over_seeds(runs, columns), COLUMNS[group]
  parts.keep(frame)
  if group in _KINDS and any(name.startswith('honest.') for name in runs):
    title += ', honest'
  for column in (c for c in columns if is_shown and '.pooled_' not in c):
    mean, std, measure = frame[column, 'mean'], frame[column, 'std'], metric(column)
    digits = 2 if not (is_metric or measure.percent) else measure.digits
    marked = {}
    if group in _KINDS and column.partition('.')[2] in task_of(runs).columns:
      marked = marks(runs, column, oracle, correct)
    texts = _texts(f'z.{digits}f', mean, std if is_metric else None)
    texts = {m: text + marked.get(m, '') for m, text in texts.items()}
    parts.cells[title, heading(column)] = texts


def _texts(form: str, mean: 'Series', std: 'Series | None' = None) -> dict[Any, str]:
  """Method -> '86.6 ± 0.9', or '86.6' without deviations."""
  std = math.nan * mean if std is None else std
  return {m: spread(x, std[m], form) for m, x in mean.items()}


def _add_differences(parts: _Parts, against: 'DataFrame', kind: str) -> None:
  """Adds the differences to a reference, with marks of those that favor a method."""
  if against.empty:
    return
  measure, reference = metric(against.attrs['column']), against.attrs['reference']
  group = f'{f"{COLUMNS[kind]} " * (kind != "deployed")}minus {reference}'
  form = f'+.{measure.digits + 1}f'
  favors = (against['p'] < 1 - LEVEL) & (against['difference'].map(measure.better) > 0)
  texts = _texts(form, against['difference'])
  texts |= {m: texts[m] + BEST for m in against.index[favors]}
  parts.cells[group, 'difference'] = texts
  intervals = against[['low', 'high']].dropna().itertuples()
  texts = {m: f'[{low:{form}}, {high:{form}}]' for m, low, high in intervals}
  parts.cells[group, '95 % interval'] = texts
  parts.cells[group, 'p'] = _texts('.2g', against['p'])


def _add_clients(parts: _Parts, clients: 'DataFrame', runs: 'DataFrame') -> None:
  """Adds clients that gain and lose against FedAvg, and the worst tenth."""
  measure, base = task_of(runs).primary, label_of(runs, 'fed_avg')
  if base:
    changes = client_changes(clients, base, f'deployed_{measure.name}')
    parts.keep(changes)
    digits = '.1f' if runs['seed'].nunique() > 1 else '.0f'
    for name in ('gain', 'equal', 'lose') if len(changes) else ():
      texts = _texts(digits, changes[name, 'mean'], changes[name, 'std'])
      parts.cells[f'clients relative to {base}', name] = texts
  column = 'fairness.deployed.worst_decile'
  if column in runs:
    worst = measure.factor * over_seeds(runs, [column])[column][['mean', 'std']]
    parts.keep(worst, 'worst_decile_')
    texts = _texts(f'.{measure.digits}f', worst['mean'], worst['std'])
    parts.cells['worst tenth', f'{measure.name}{" (%)" * measure.percent}'] = texts


def _add_costs(parts: _Parts, runs: 'DataFrame') -> None:
  """Adds seconds, bytes, epsilon, and rounds to targets."""
  spent, cells = costs(runs), parts.cells
  parts.keep(spent)
  cells['costs', 's/round'] = _texts('.3g', spent['seconds_per_round'])
  for column, head, unit in (
    ('sent', 'GB sent', 1e9), ('start', 'GB at start', 1e9),
    ('simulated_seconds', 'h on devices', 3600),
  ):  # fmt: skip
    if spent[column].max() > 0:
      cells['costs', head] = _texts('.3g', spent[column] / unit)
  cells['costs', 'epsilon'] = _texts('.3g', spent['epsilon'])
  for column in (c for c in runs if c.startswith('rounds_to.')):
    target = float(column.removeprefix('rounds_to.'))
    groups = runs.groupby('method', observed=True)[column]
    reached = groups.agg(['mean', 'std', 'count', 'size']).astype(float)
    parts.keep(reached.drop(columns='size'), f'{column}_')
    texts = {}
    for method, mean, std, count, size in reached.itertuples():
      note = f' ({count:.0f} of {size:.0f})' * (0 < count < size)
      texts[method] = (spread(mean, std, '.1f') or 'not reached') + note
    cells['costs', f'rounds to {task_of(runs).primary.target(target)}'] = texts


def _notes(runs: 'DataFrame', against: 'DataFrame', compared: Any) -> list[str]:
  """The two lines below a table."""
  seeds = runs['seed'].nunique()
  several = seeds > 1
  metrics = 'Mean ± sample standard deviation' if several else 'Metrics'
  first = f'{metrics} {REPORTS[compared.report]}, {seeds} seed{"s" * several}'
  if 'evaluated_on' in runs and (held_out := runs['evaluated_on'].notna()).any():
    methods = ', '.join(map(str, runs['method'][held_out].unique()))
    first += f', on validation examples{f" ({methods})" * (not held_out.all())}'
  if several:
    holm_text = ", Holm's correction" * (compared.correct == 'holm')
    first += f'; °: as the best (paired t-test, p ≥ {1 - LEVEL:.2g}{holm_text})'
  second = 'Costs: median seconds a round; total bytes, those at the start included.'
  if len(against):
    head = heading(against.attrs['column'])
    paired = ', paired over seeds, with Student intervals' * several
    second = f'Differences of {head}{paired}. {second}'
  untested = runs.get('clients_without_test_examples')
  if untested is not None and untested.max() > 0:
    second += f' {untested.max():.0f} clients without test examples are left out.'
  return [f'{first}.', second]
