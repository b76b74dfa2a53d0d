"""The charts of a page that react to a pointer: curves and clients.

Each is Vega-Lite's specification, of Altair. Colors of text are those of the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fesem_jax.analysis import tables
from fesem_jax.plots.lines import metric_name, over_runs
from fesem_jax.plots.style import PALETTE

_POINTS, _CLIENTS = 200, 2000  # Of a curve, and of a run, at most.
# Metrics of rounds that are no curves of their own.
_OTHERS = ('cluster_sizes.', 'total_', 'bytes_', 'start_bytes_', 'round')
_SHAPES = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross']
# Black is the color of text, which dark pages have in white.
_COLORS = ['currentColor' if color == '#000000' else color for color in PALETTE]
_SCALE = alt.Scale(zero=False)
# Dragging moves a chart, Ctrl and the wheel zoom.
_ZOOM = alt.selection_interval(bind='scales', zoom='wheel![event.ctrlKey]')
_CONFIG: dict[str, Any] = {
  'background': 'transparent',
  'view': {'stroke': None},
  'axis': {'labelColor': 'currentColor', 'titleColor': 'currentColor'}
  | {'gridColor': '#8884', 'domainColor': '#888', 'tickColor': '#888'},
  'legend': {'labelColor': 'currentColor', 'titleColor': 'currentColor'}
  | {'orient': 'bottom', 'columns': 3, 'labelLimit': 200, 'symbolOpacity': 1}
  | {'symbolBaseFillColor': 'currentColor', 'symbolBaseStrokeColor': 'currentColor'},
}


def curves(rounds: pd.DataFrame) -> dict[str, Any]:
  """Every metric over rounds, bytes or seconds, its mean and interval over seeds."""
  recorded = list(rounds['metric'].unique())
  metrics = [m for m in recorded if not m.startswith(_OTHERS)]
  first = ('honest.', 'deployed.', 'finetuned.')
  metrics.sort(key=lambda m: [not m.startswith(kind) for kind in first])
  overs = ['round', *(m for m in recorded if m.startswith('total_'))]
  averages, keys = _averages(rounds), ['method', 'round']
  by_curve = averages[averages['metric'].isin(metrics)].groupby(['metric', 'method'])
  frame = pd.concat([_evenly(curve, _POINTS) for _, curve in by_curve])
  costs = averages[averages['metric'].isin(overs)]
  frame = frame.join(costs.pivot(index=keys, columns='metric', values='mean'), on=keys)
  metric_menu = _menu('metric', 'Metric', {m: metric_name(m) for m in metrics})
  over = _menu('over', 'over', {m: metric_name(m) for m in overs})
  picked = alt.selection_point(fields=['method'], bind='legend')
  numbers = [alt.Tooltip(f'{n}:Q', format='.4~g') for n in ('x', 'mean', 'low', 'high')]
  base = (
    alt.Chart(frame)
    .transform_filter('datum.metric === metric')
    .transform_calculate(x='datum[over]')
    .encode(
      x=alt.X('x:Q', title=None, scale=_SCALE, axis=alt.Axis(format='~s', tickCount=8)),
      y=alt.Y('mean:Q', title=None, scale=_SCALE),
      color=_color('method', list(map(str, rounds['method'].unique()))),
      opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
      tooltip=['method:N', *numbers, 'seeds:Q'],
    )
  )
  low = alt.Y('low:Q', title=None, scale=_SCALE)
  band = base.mark_area(fillOpacity=0.2).encode(y=low, y2='high:Q')
  points = base.mark_point(filled=True, size=30).add_params(picked, _ZOOM)
  return _spec(alt.layer(band, base.mark_line(), points), metric_menu, over)


def _averages(rounds: pd.DataFrame) -> pd.DataFrame:
  """Every metric's mean and deviation over runs, in rounds that all runs have."""
  rows = rounds.dropna(subset='value').astype({'method': str})
  frame = over_runs(rows.groupby(['metric', 'method', 'round'])['value']).reset_index()
  ends = ['mean', 'low', 'high']  # One run has no interval.
  factor = frame['metric'].map(lambda metric: tables.metric(metric).factor)
  frame[ends] = frame[ends].ffill(axis=1).mul(factor, axis=0)
  return frame


def clients(frame: pd.DataFrame) -> dict[str, Any]:
  """Clients of runs as points: the map, with `x` and `y`, or their metrics."""
  runs = frame.groupby('method', observed=True)
  shown = pd.concat([_evenly(rows, _CLIENTS) for _, rows in runs])
  score, *others = [c for c in shown if c.startswith(('deployed_', 'finetuned_'))]
  for name in (score, *others):
    shown[name] = (tables.metric(name).factor * shown[name]).round(4)
  over = ('examples', *others)
  views = {n: f'{metric_name(score)} over {metric_name(n)}' for n in over}
  if 'x' in shown:
    views = {'map': 'Map of local models, with clusters', **views}
  clusters = shown.get('cluster', pd.Series(index=shown.index)).astype('Int64')
  ids = [*map(str, sorted(clusters.dropna().unique())), 'none']
  truth = shown.get('true_cluster', pd.Series('', shown.index)).astype(str)
  names = shown['method'].astype(str)
  cluster = clusters.astype('string').fillna('none')
  shown = shown.assign(cluster=cluster, true_cluster=truth, method=names)
  clustered = names[clusters.notna()]  # Shown first.
  run = _menu('method', 'Run', dict.fromkeys([*clustered, *names]))
  view = _menu('view', 'Show', views)
  px = 'view !== "map" ? datum[view] : isValid(datum.x) ? datum.x : datum.examples'
  py = f'view === "map" && isValid(datum.x) ? datum.y : datum.{score}'
  chart = (
    alt.Chart(shown.drop(columns=['run', 'seed']))
    .mark_point(filled=True, size=60, opacity=0.8)
    .transform_filter('datum.method === method')
    .transform_calculate(px=px, py=py)
    .transform_filter('isValid(datum.px) && isValid(datum.py)')
    .encode(
      x=alt.X('px:Q', scale=_SCALE, title=None),
      y=alt.Y('py:Q', scale=_SCALE, title=None),
      color=_color('cluster', ids),
      shape=alt.Shape('true_cluster:N', scale=alt.Scale(range=_SHAPES), title=None),
      tooltip=['client:N', 'cluster:N', 'true_cluster:N', 'examples', score, *others],
    )
    .add_params(_ZOOM)
  )
  return _spec(chart, run, view)


def _evenly(frame: pd.DataFrame, most: int) -> pd.DataFrame:
  """Rows at even distances, at most so many."""
  return frame.iloc[np.linspace(0, len(frame) - 1, min(len(frame), most)).astype(int)]


def _menu(name: str, title: str, options: Mapping[str, str | None]) -> alt.Parameter:
  """A menu: value -> its text, None where it is the same."""
  labels = [text or value for value, text in options.items()]
  bind = alt.binding_select(options=list(options), labels=labels, name=f'{title} ')
  return alt.param(name=name, value=next(iter(options)), bind=bind)


def _color(field: str, names: Sequence[str]) -> alt.Color:
  """Colors of the palette, in the order of the names."""
  colors = [_COLORS[i % len(_COLORS)] for i in range(len(names))]
  scale = alt.Scale(domain=names, range=colors)
  return alt.Color(f'{field}:N', scale=scale, title=None)


def _spec(chart: Any, *params: alt.Parameter) -> dict[str, Any]:
  """A chart as wide as the page, with menus."""
  whole = chart.add_params(*params).properties(width='container', height=360)
  with alt.data_transformers.disable_max_rows():
    spec: dict[str, Any] = whole.configure(**_CONFIG).to_dict()
  return spec
