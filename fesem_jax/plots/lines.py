"""Curves: metrics over rounds or costs, Eq. 6 by step, metrics over a flag's values."""

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes

from fesem_jax.analysis import tables
from fesem_jax.plots.style import (
  color_of,
  curve_style,
  in_figure,
  names_in_figure,
  over_rounds,
)
from fesem_jax.utils.display import text_of

# Metrics, and what may stand below curves -> their names on an axis.
NAMES = {
  'total_bytes': 'Sent to and from clients',
  'total_seconds': 'Seconds of training',
  'total_simulated_seconds': 'Simulated seconds of rounds',
  'objective': 'Mean squared distance to center (Eq. 6)',
  'moved': 'Clients that moved',
}
_WIDE = 10  # Ratio of values from which on an axis is logarithmic.
_APART = 0.06  # Between methods at one value that is no number.


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
  if over == 'round':
    over_rounds(ax)
    return ax
  ax.set_xlabel(NAMES.get(over, over.capitalize()))
  if over == 'total_bytes':
    ax.xaxis.set_major_formatter(ticker.EngFormatter('B'))
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
  that ranks models. A method without the flag, or that sets it itself, has one value
  everywhere. `ax.legend()` names the methods.
  """
  column = column or tables.score(runs)
  frame, values = _by_value(runs, flag, column)
  numeric = all(type(v) in (int, float) for v in values)
  places = np.array(values if numeric else range(len(values)), float)
  for i, (method, rows) in enumerate(frame.groupby('method', sort=False)):
    means = tables.metric(column).factor * rows.set_index('place')[['mean', 'std']]
    # Equal ones would hide each other.
    x = places[means.index] + (0 if numeric else _APART * i)
    name = names_in_figure([method])[0]
    ax.plot(x, means['mean'], label=name, **curve_style(i))
    ends = means['mean'] - means['std'], means['mean'] + means['std']
    ax.fill_between(x, *ends, color=color_of(i), alpha=0.15, linewidth=0)
  positive = places[places > 0]
  if numeric and positive.max(initial=0) >= _WIDE * positive.min(initial=np.inf):
    ax.set_xscale('symlog', linthresh=positive.min(), linscale=0.5)
  ax.set_xticks(places, [in_figure(text_of(v)) for v in values])
  ax.xaxis.set_minor_locator(ticker.NullLocator())
  ax.set(xlabel=in_figure(flag), ylabel=metric_name(column))
  return ax


def _by_value(
  runs: pd.DataFrame, flag: str, column: str
) -> tuple[pd.DataFrame, list[Any]]:
  """`method`, `place` of its value, `mean` and `std` over seeds; and the values."""
  labels = runs['method'].astype(str)
  # Labels have the values, also of one number of an expression: partition.alpha.
  parts = labels.str.extract(rf'^(.*)([(;]){re.escape(flag)}=(.*)\)$')
  base, settings = parts[0] + parts[1].map({'(': '', ';': ')'}), parts[2]
  varies, numbers = settings.notna(), pd.to_numeric(settings, errors='coerce')
  is_numeric = numbers[varies].notna().all()
  settings = numbers if is_numeric else settings
  values = list(dict.fromkeys(settings[varies]))
  values = sorted(values) if is_numeric else values
  scores = runs[column].astype(float)
  frame = pd.DataFrame({'method': base.fillna(labels), 'value': scores})
  frame['place'] = settings.map(values.index, 'ignore')
  # What does not vary is the same at all values.
  fixed = [frame[~varies].assign(place=place) for place in range(len(values))]
  groups = pd.concat([frame[varies], *fixed]).groupby(['method', 'place'], sort=False)
  statistics = groups['value'].agg(['mean', 'std']).reset_index()
  return statistics.sort_values('place').astype({'place': int}), values
