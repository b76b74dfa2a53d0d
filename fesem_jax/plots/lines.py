"""Metrics of methods over rounds, costs or a flag's values, and their differences."""

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes

from fesem_jax.analysis import tables
from fesem_jax.plots.style import (
  SMALL,
  color_of,
  curve_style,
  in_figure,
  names_in_figure,
  over_rounds,
)

# Metrics, and what may stand below curves -> their names on an axis.
NAMES = {
  'total_bytes': 'Sent to and from clients',
  'total_seconds': 'Seconds of training',
  'total_simulated_seconds': 'Simulated seconds of rounds',
  'objective': 'Mean squared distance to center (Eq. 6)',
  'moved': 'Clients that moved',
}
_MAX_NAMED = 12  # Clusters in a legend of sizes.


def metric_name(metric: str) -> str:
  """A metric on an axis: 'Deployed micro accuracy (%)' of 'deployed.micro_accuracy'."""
  measure = tables.metric(metric)
  words = re.split('[._]', metric.removesuffix(measure.name))[:-1]
  words = [w.replace('finetuned', 'fine-tuned') for w in words if w != 'clusters']
  text = ' '.join([*words, measure.label.replace('_', ' ')])
  return NAMES.get(metric, f'{text[0].upper()}{text[1:]}{" (%)" * measure.percent}')


def average(rounds: pd.DataFrame, metric: str, over: str = 'round') -> pd.DataFrame:
  """The mean of a metric over the runs of each method, and its standard deviation.

  Args:
    rounds: of `load_runs` or `Result.frames`.
    metric: e.g. 'deployed.micro_accuracy'.
    over: the horizontal axis: 'round', 'total_bytes', 'total_seconds',
      'total_simulated_seconds', 'epsilon', or another metric.

  Returns:
    `method`, `round`, `x` (mean of `over`), `mean`, `low` and `high`, a standard
    deviation below and above it, NaN for one run, and `seeds`, the number of runs; in
    rounds that all runs of a method have.
  """
  keys = ['run', 'method', 'round']
  selected = rounds[rounds['metric'].isin({metric, over})]
  wide = selected.pivot(index=keys, columns='metric', values='value').reset_index()
  wide['x'] = wide['round'] if over == 'round' else wide.get(over, np.nan)
  wide = wide.reindex(columns=[*keys, 'x', metric]).dropna()
  groups = wide.groupby(['method', 'round'], observed=True)
  return over_runs(groups[metric]).join(groups['x'].mean()).reset_index()


def over_runs(values: Any) -> pd.DataFrame:
  """`mean`, `low`, `high` and `seeds` of `average`, of values by keys and the round."""
  frame = values.agg(['mean', 'std', 'count']).rename(columns={'count': 'seeds'})
  curves = frame['seeds'].groupby(frame.index.names[:-1], observed=True)
  frame = frame[frame['seeds'] == curves.transform('max')]
  std = frame.pop('std')
  return frame.assign(low=frame['mean'] - std, high=frame['mean'] + std)


def curves(
  rounds: pd.DataFrame, ax: Axes, metric: str = '', over: str = 'round'
) -> Axes:
  """Draws a metric of each method: the mean over its runs, and its deviation.

  For the arguments, see `average`; the default metric is the first of deployed models.
  `ax.legend()` names the methods.
  """
  metric = metric or next(m for m in rounds['metric'] if m.startswith('deployed.'))
  factor, frame = tables.metric(metric).factor, average(rounds, metric, over)
  names = _legend_names(rounds, frame)
  for i, (method, curve) in enumerate(frame.groupby('method', observed=True)):
    x, values = curve['x'], factor * curve[['mean', 'low', 'high']]
    style = curve_style(i, curve['round'].to_numpy())
    ax.plot(x, values['mean'], label=names[method], **style)
    ax.fill_between(x, values['low'], values['high'], fc=color_of(i), alpha=0.2, lw=0)
  ax.set_ylabel(metric_name(metric))
  if metric in ('ari', 'nmi', 'ami'):
    ax.set_ylim(min(-0.02, ax.dataLim.y0), 1.03)
  ax.set_xlabel(NAMES.get(over, over.capitalize()))
  if over == 'round':
    over_rounds(ax)
  elif over == 'total_bytes':
    ax.xaxis.set_major_formatter(ticker.EngFormatter('B'))
    ax.locator_params(axis='x', nbins=5)  # Or numbers with units touch each other.
  return ax


def cluster_sizes(rounds: pd.DataFrame, ax: Axes) -> Axes:
  """Draws the sizes of the clusters of one run; rounds without a record stay empty."""
  recorded = rounds[rounds['metric'].str.startswith('cluster_sizes.')]
  numbers = recorded['metric'].str.removeprefix('cluster_sizes.').astype(int)
  sizes = recorded.pivot_table('value', 'round', numbers, fill_value=0).astype(int)
  first, last = int(sizes.index[0]), int(sizes.index[-1])
  all_rounds = sizes.astype(float).reindex(range(first, last + 1))
  levels = np.pad(all_rounds.cumsum(axis=1).to_numpy(), ((0, 0), (1, 0)))
  levels[all_rounds.isna().any(axis=1)] = np.nan
  edges = np.arange(first, last + 2) - 0.5
  handles = {}
  for i, k in enumerate(sizes):
    ends, color = (levels[:, i + 1], edges), color_of(k)
    handles[k] = ax.stairs(*ends, baseline=levels[:, i], fill=True, color=color)
  for level in levels.T[1:-1]:  # Between neighbors of one color, too.
    ax.stairs(level, edges, baseline=None, color='white', linewidth=1)
  ax.set_xlim(edges[0], edges[-1])
  ax.set_ylim(0, sizes.sum(axis=1).max())
  at_end = sizes.iloc[-1]
  named = at_end[at_end > 0].nlargest(_MAX_NAMED).index.sort_values(ascending=False)
  texts = [f'{k}: {at_end[k]}' for k in named]
  title = f'cluster: clients\nin round {last}'
  fonts: dict[str, Any] = {'title': title, 'title_fontsize': SMALL}
  fonts |= {'fontsize': SMALL, 'loc': 'center left', 'bbox_to_anchor': (1, 0.5)}
  ax.legend([handles[k] for k in named], texts, **fonts)
  ax.set_ylabel('Clients')
  over_rounds(ax)
  return ax


def _legend_names(rounds: pd.DataFrame, frame: pd.DataFrame) -> dict[Any, str]:
  """Names of methods; they tell of missing seeds and of runs that ended early."""
  seeds = frame.groupby('method', observed=True)['seeds'].max()
  ends = rounds.groupby(['method', 'run'], observed=True)['round'].max()
  names = names_in_figure(seeds.index)
  texts = {}
  for name, (method, count) in zip(names, seeds.items(), strict=True):
    first, last = ends[method].min(), ends[method].max()
    name += f' ({count} of {seeds.max()} seeds)' * bool(count < seeds.max())
    texts[method] = name + f' (to round {first})' * bool(first < last)
  return texts


def sweep(runs: pd.DataFrame, ax: Axes, flag: str, column: str = '') -> Axes:
  """Draws a metric of each method over the values of a flag, mean and deviation.

  `runs` are of a comparison with `--sweep`; `column` is by default the deployed metric
  that ranks models. Values are in order, at even distances. A method without the flag,
  or that sets it itself, has one value everywhere. `ax.legend()` names the methods.
  """
  column, labels = column or tables.score(runs), runs['method'].astype(str)
  # Labels have the values, also of one number of an expression: partition.alpha.
  parts = labels.str.extract(rf'^(.*)([(;]){re.escape(flag)}=(.*)\)$')
  names = (parts[0] + parts[1].map({'(': '', ';': ')'})).fillna(labels)
  texts, values = parts[2], pd.Series(parts[2].dropna().unique())
  numbers = pd.to_numeric(values, errors='coerce')
  values = values[numbers.sort_values().index] if numbers.notna().all() else values
  scores = tables.metric(column).factor * runs[column].astype(float)
  for i, name in enumerate(names.unique()):
    of_method = names == name
    seeds = [scores[of_method & (texts.isna() | (texts == x))] for x in values]
    mean, std = np.transpose([(x.mean(), x.std()) for x in seeds])
    ax.plot(mean, label=names_in_figure([name])[0], **curve_style(i))
    band = range(len(values)), mean - std, mean + std
    ax.fill_between(*band, fc=color_of(i), alpha=0.15, lw=0)
  ax.set_xticks(range(len(values)), map(in_figure, values))
  ax.set(xlabel=in_figure(flag), ylabel=metric_name(column))
  return ax


def differences(frame: pd.DataFrame, ax: Axes) -> Axes:
  """Draws the differences of methods to a reference; filled where p is below 0.05.

  `frame` is of `tables.differences` or `Comparison.differences`.
  """
  column, names = frame.attrs['column'], names_in_figure(frame.index)
  ax.axvline(0, color='0.4', linewidth=1)
  for place, row in enumerate(frame.itertuples()):
    color = color_of(0 if tables.metric(column).better(row.difference) > 0 else 1)
    ax.plot([row.low, row.high], [place, place], color=color)
    fill = color if row.p < 0.05 else 'white'
    ax.plot(row.difference, place, 'o', color=color, markerfacecolor=fill)
    names[place] += '\n(infinite)' * bool(np.isinf(row.difference))
  ax.set_yticks(range(len(frame)), names)
  ax.set_ylim(len(frame) - 0.5, -0.5)
  reference = in_figure(str(frame.attrs['reference']))
  label = metric_name(column).replace('(%)', '(points)')
  ax.set_xlabel(f'{label}\nminus {reference}')
  return ax
