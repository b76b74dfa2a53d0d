"""The charts of a page that react to a pointer: curves, clients, clusters over rounds.

Each is Vega-Lite's specification, of Altair. Colors of text are those of the page.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fesem_jax.analysis import tables
from fesem_jax.plots.clusters import sizes_of_clusters
from fesem_jax.plots.lines import NAMES, average, metric_name
from fesem_jax.utils.display import method_name
from fesem_jax.utils.palette import PALETTE

# Points of a curve, clients of a run, clusters of a chart, at most.
_POINTS, _CLIENTS, _CLUSTERS = 200, 2000, 20
# Metrics of rounds that are no curves of their own.
_OTHERS = ('cluster_sizes.', 'total_', 'bytes_', 'start_bytes_', 'round')
_SHAPES = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross']
# Black is the color of text, which dark pages have in white.
_COLORS = ['currentColor' if color == '#000000' else color for color in PALETTE]
_CONFIG: dict[str, Any] = {
  'background': 'transparent',
  'view': {'stroke': None},
  'axis': {'labelColor': 'currentColor', 'titleColor': 'currentColor'}
  | {'gridColor': '#8884', 'domainColor': '#888', 'tickColor': '#888'},
  'legend': {'labelColor': 'currentColor', 'titleColor': 'currentColor'}
  | {'orient': 'bottom', 'columns': 3, 'labelLimit': 200, 'symbolOpacity': 1},
}


def curves(rounds: pd.DataFrame) -> dict[str, Any]:
  """Every metric over rounds, bytes or seconds, its mean and interval over seeds."""
  metrics = [m for m in rounds['metric'].unique() if not m.startswith(_OTHERS)]
  metrics.sort(key=lambda m: not m.startswith(('deployed.', 'honest.')))
  overs = ['round', *(m for m in NAMES if m in set(rounds['metric']) and 'total' in m)]
  frame = pd.concat([_points(rounds, metric, overs) for metric in metrics])
  chosen = alt.param(name='metric', value=metrics[0], bind=_menu('Metric', metrics))
  over = alt.param(name='over', value='round', bind=_menu('over', overs))
  picked = alt.selection_point(fields=['method'], bind='legend')
  zoom = alt.selection_interval(
    bind='scales', zoom='wheel![event.ctrlKey]', encodings=['x', 'y']
  )
  numbers = [alt.Tooltip(n, format='.4~g') for n in ('x', 'mean', 'low', 'high')]
  base = (
    alt.Chart(frame)
    .transform_filter('datum.metric === metric')
    .transform_calculate(x='datum[over]')
    .encode(
      x=alt.X('x:Q', title=None, scale=alt.Scale(zero=False)),
      color=_color('method', [method_name(m) for m in rounds['method'].cat.categories]),
      opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
      tooltip=['method:N', *numbers, 'seeds:Q'],
    )
  )
  y = alt.Y('mean:Q', title=None, scale=alt.Scale(zero=False))
  band = base.mark_area(fillOpacity=0.2).encode(
    y=alt.Y('low:Q', title=None), y2='high:Q'
  )
  points = base.mark_point(filled=True, size=30).encode(y=y).add_params(picked, zoom)
  return _spec(alt.layer(band, base.mark_line().encode(y=y), points), chosen, over)


def _points(rounds: pd.DataFrame, metric: str, overs: Sequence[str]) -> pd.DataFrame:
  """The points of the curves of a metric; of many rounds, some at even distances."""
  frame = average(rounds, metric)
  factor = tables.metric(metric).factor
  frame[['mean', 'low', 'high']] *= factor
  for over in overs[1:]:
    at = average(rounds, over).set_index(['method', 'round'])['mean']
    frame = frame.join(at.rename(over), on=['method', 'round'])
  parts = []
  for _, curve in frame.groupby('method', observed=True):
    places = np.linspace(0, len(curve) - 1, min(len(curve), _POINTS)).astype(int)
    parts.append(curve.iloc[places])
  frame = pd.concat(parts) if parts else frame
  names = frame['method'].astype(str).map(method_name)
  return frame.drop(columns='x').assign(method=names, metric=metric)


def clients(frame: pd.DataFrame) -> dict[str, Any]:
  """Clients of runs as points: map of local models, or their metrics.

  `frame` has the rows of `Frames.clients`, with the `x` and `y` of the map.
  """
  parts = [
    run.iloc[np.unique(np.linspace(0, len(run) - 1, _CLIENTS).astype(int))]
    for _, run in frame.groupby('method', observed=True)
  ]
  shown = pd.concat(parts)
  metrics = [c for c in shown if c.startswith(('deployed_', 'finetuned_'))]
  for name in metrics:
    shown[name] = (tables.metric(name).factor * shown[name]).round(4)
  views = {'examples': 'examples', **{m: m for m in metrics[1:]}}
  has_map = 'x' in shown and shown['x'].notna().any()
  names = ['map of local models'] * has_map + [
    f'{metric_name(metrics[0])} over {metric_name(v) if v in metrics else v}'
    for v in views
  ]
  keys = ['map'] * has_map + list(views)
  shown['method'] = shown['method'].astype(str).map(method_name)
  methods = list(shown['method'].unique())
  run = alt.param(name='method', value=methods[0], bind=_menu('Run', methods, methods))
  view = alt.param(name='view', value=keys[0], bind=_menu('Show', keys, names))
  zoom = alt.selection_interval(bind='scales', zoom='wheel![event.ctrlKey]')
  for name in ('cluster', 'true_cluster'):
    shown[name] = shown[name].astype(str) if name in shown else 'all'
  axis = {'scale': alt.Scale(zero=False), 'title': None}
  y = f'datum["{metrics[0]}"]'
  chart = (
    alt.Chart(shown.drop(columns=['run', 'seed']))
    .mark_point(filled=True, size=60, opacity=0.8)
    .transform_filter('datum.method === method')
    .transform_calculate(
      px='view === "map" ? datum.x : datum[view]',
      py=f'view === "map" ? datum.y : {y}',
    )
    .transform_filter('isValid(datum.px) && isValid(datum.py)')
    .encode(
      x=alt.X('px:Q', **axis),
      y=alt.Y('py:Q', **axis),
      color=_color(
        'cluster', sorted(shown['cluster'].unique(), key=lambda k: k.zfill(6))
      ),
      shape=alt.Shape('true_cluster:N', scale=alt.Scale(range=_SHAPES), title='true'),
      tooltip=['client', 'cluster', 'true_cluster', 'examples', *metrics],
    )
    .add_params(zoom)
  )
  return _spec(chart, run, view)


def clusters(rounds: pd.DataFrame) -> dict[str, Any]:
  """Sizes of the largest clusters over rounds, of the first run of each method."""
  parts = []
  for method, own in rounds.groupby('method', observed=True):
    sizes = sizes_of_clusters(own)
    places = np.linspace(0, len(sizes) - 1, min(len(sizes), _POINTS)).astype(int)
    sizes = sizes.iloc[places]
    if sizes.shape[1] > _CLUSTERS:
      top = sizes.iloc[-1].nlargest(_CLUSTERS).index.sort_values()
      sizes = sizes[top].assign(others=sizes.drop(columns=top).sum(axis=1))
    long = sizes.reset_index().melt('round', var_name='cluster', value_name='clients')
    parts.append(long.assign(method=method_name(str(method))))
  frame = pd.concat(parts).astype({'cluster': str})
  names, methods = list(frame['cluster'].unique()), list(frame['method'].unique())
  run = alt.param(name='method', value=methods[0], bind=_menu('Run', methods, methods))
  chart = (
    alt.Chart(frame)
    .mark_area(interpolate='step')
    .transform_filter('datum.method === method')
    .encode(
      x=alt.X('round:Q', title='Round', axis=alt.Axis(tickMinStep=1)),
      y=alt.Y('clients:Q', title='Clients'),
      color=_color('cluster', names),
      order='cluster:O',
      tooltip=['round', 'cluster', 'clients'],
    )
  )
  return _spec(chart, run)


def _menu(name: str, options: Sequence[str], labels: Sequence[str] = ()) -> Any:
  """A menu of metrics, or of other options that have labels."""
  shown = labels or [metric_name(option) for option in options]
  return alt.binding_select(options=options, labels=shown, name=f'{name} ')


def _color(field: str, names: Sequence[str]) -> alt.Color:
  """Colors of the palette, in the order of the names."""
  colors = [_COLORS[i % len(_COLORS)] for i in range(len(names))]
  return alt.Color(
    f'{field}:N', scale=alt.Scale(domain=names, range=colors), title=None
  )


def _spec(chart: Any, *params: Any) -> dict[str, Any]:
  """A chart as wide as the page, with menus."""
  whole = chart.add_params(*params).properties(width='container', height=360)
  with alt.data_transformers.disable_max_rows():
    return whole.configure(**_CONFIG).to_dict()
