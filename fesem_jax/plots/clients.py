"""Clients: the map of their local models, and their classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colors, ticker
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fesem_jax.evaluation.label_skew import label_skew
from fesem_jax.plots.style import MARKERS, SMALL, color_of, in_figure
from fesem_jax.utils.display import printable

_PIXELS = 2000  # More points are pixels in PDF and SVG: 100,000 would take 20 MB.
_SHOWN = 80  # More clients are narrower than a line.
_NAMED = 7  # True clusters in a legend; the others have the last color.
_WRITTEN = 12  # Classes that are named beside rows.

Portrait = Mapping[str, np.ndarray]


def true_clusters(
  truth: np.ndarray | None, names: Sequence[str] | np.ndarray | None = None
) -> pd.Categorical | None:
  """The true clusters [M]; `names` are of numbers. None where none are known."""
  if truth is None or not len(truth):
    return None
  by_number = dict(enumerate([] if names is None else names))
  kinds, codes = np.unique(truth, return_inverse=True)
  texts = [str(kind) for kind in kinds]
  if kinds.dtype.kind != 'U':
    texts = [by_number.get(int(kind), f'true cluster {kind}') for kind in kinds]
  return pd.Categorical.from_codes(codes, [printable(str(text)) for text in texts])


def client_points(portrait: Portrait) -> pd.DataFrame:
  """Local models of sampled clients in the plane of their first two components.

  `portrait` is a `Result.portrait` of a method with clusters. Columns are `client`,
  `x`, `y`, `cluster`, and `true_cluster` where it is known; `attrs['shares']` are the
  shares of variance of x and y.
  """
  sampled, xy = portrait['sampled'], portrait['coordinates']
  frame = pd.DataFrame({'client': portrait['names'][sampled], 'x': xy[:, 0]})
  frame = frame.assign(y=xy[:, 1], cluster=portrait['assignment'][sampled])
  truth = true_clusters(portrait.get('truth'), portrait.get('truth_names'))
  if truth is not None:
    frame['true_cluster'] = truth[sampled]
  frame.attrs['shares'] = portrait['variance'][:2].tolist()
  return frame


def client_map(points: pd.DataFrame, ax: Axes) -> Axes:
  """Draws local models as points, colored by cluster, marked by true cluster (Fig. 4).

  `points` are of `client_points`. Without true clusters, clusters have markers.
  """
  has_truth = 'true_cluster' in points
  marker = points['true_cluster'].cat.codes if has_truth else points['cluster']
  style: dict[str, Any] = {'edgecolors': 'white', 'linewidths': 0.3, 'alpha': 0.8}
  style |= {'s': 26, 'rasterized': len(points) > _PIXELS}
  for (c, t), group in points.groupby([points['cluster'], marker]):
    style |= {'color': color_of(c), 'marker': MARKERS[t % len(MARKERS)]}
    ax.scatter(group['x'], group['y'], **style)
  ax.grid(visible=False)
  x, y = points.attrs.get('shares', (0, 0))
  ax.set(xticks=[], xlabel=f'PC 1 ({100 * x:.0f} %)')
  ax.set(yticks=[], ylabel=f'PC 2 ({100 * y:.0f} %)')
  ax.legend(handles=_legend_of_map(points), loc='center left', bbox_to_anchor=(1, 0.5))
  return ax


def _legend_of_map(points: pd.DataFrame) -> list[Line2D]:
  """Clusters by color, and true clusters by marker."""
  clusters, has_truth = np.unique(points['cluster']).tolist(), 'true_cluster' in points
  marks = [
    (f'cluster {c}', color_of(c), 's' if has_truth else MARKERS[c % len(MARKERS)])
    for c in clusters * (len(clusters) > 1)
  ]
  for i, name in enumerate(points['true_cluster'].cat.categories if has_truth else ()):
    marks.append((in_figure(name), '#555555', MARKERS[i % len(MARKERS)]))
  return [Line2D([], [], ls='', label=m[0], color=m[1], marker=m[2]) for m in marks]


def class_counts(
  counts: np.ndarray,
  clusters: np.ndarray | None = None,
  cluster_names: Sequence[str] | np.ndarray | None = None,
  names: Sequence[str] | np.ndarray | None = None,
) -> pd.DataFrame:
  """Training examples [M, L] of each class on each client, as `partition` draws them.

  `clusters` are the true clusters of the clients and the index of the frame;
  `cluster_names` are what 0, 1, ... are called, and `names` those of the classes, if
  they are L. L is 1 where there are no classes, as in a regression.
  """
  labeled = names is not None and len(names) == counts.shape[1]
  frame = pd.DataFrame(counts, columns=names if labeled else None)
  truth = true_clusters(clusters, cluster_names)
  if truth is None:
    return frame
  return frame.set_index(pd.CategoricalIndex(truth, name='true_cluster'))


def partition(counts: pd.DataFrame, ax: Axes, below: Axes) -> Axes:
  """Draws the share of each class in the examples of clients, their sizes into `below`.

  `counts` are of `class_counts`; `ax.images[0]` is for a color bar. Clients are in the
  order of their true clusters; of more than 80, 80 at even distances are shown.
  """
  truth = counts.index if isinstance(counts.index, pd.CategoricalIndex) else None
  client_group = np.zeros(len(counts), int) if truth is None else truth.codes
  order = np.argsort(client_group, kind='stable')
  order = order[np.linspace(0, len(order) - 1, min(len(order), _SHOWN)).astype(int)]
  shown, cluster = counts.iloc[order], client_group[order]
  shares = shown.div(shown.sum(axis=1).clip(lower=1), axis=0).T
  norm = colors.PowerNorm(0.5, 0, 1)  # Small shares are to be told apart, too.
  ax.imshow(shares, cmap='Blues', norm=norm, interpolation='nearest', aspect='auto')
  bars = [color_of(min(c, _NAMED)) for c in cluster.tolist()]
  below.bar(range(len(shown)), shown.sum(axis=1), 1.0, color=bars)
  for panel in (ax, below):
    for at in np.flatnonzero(np.diff(cluster)):
      panel.axvline(at + 0.5, color='black', linewidth=1, linestyle=':')
    panel.grid(visible=False)
    panel.set(xlim=(-0.5, len(shown) - 0.5), xticks=[])
    panel.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  many = f'{len(shown)} of ' * (len(shown) < len(counts))
  below.set(xlabel=f'{many}{len(counts)} clients', ylabel='Examples')
  if truth is not None:
    names = [in_figure(name) for name in truth.categories]
    names[_NAMED:] = [f'{len(names) - _NAMED} others'] * (len(names) > _NAMED)
    handles = [Patch(color=color_of(k), label=name) for k, name in enumerate(names)]
    place: dict[str, Any] = {'ncols': 2, 'bbox_to_anchor': (0.5, -0.2)}
    below.legend(handles=handles, loc='upper center', fontsize=SMALL, **place)
  _name_classes(ax, counts)
  return ax


def _name_classes(ax: Axes, counts: pd.DataFrame) -> None:
  """Names classes beside the rows, all of them where they have room."""
  size = counts.shape[1]
  if size == 1:
    ax.set_yticks([])  # Without classes every client's examples are all alike.
    return
  ax.set_title(f'label skew {label_skew(counts.to_numpy()):.2f}', fontsize=SMALL)
  ax.set_ylabel('Class')
  rows = range(0, size, -(-size // _WRITTEN))
  names = [in_figure(counts.columns[i], 12) for i in rows]
  ax.set_yticks(rows, names, fontsize=SMALL)
  ax.invert_yaxis()
