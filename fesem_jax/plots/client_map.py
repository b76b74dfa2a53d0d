"""The local models of clients as points of a plane."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import MARKERS, STYLE, chosen_style
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import color_of

# A cluster narrower than this share of the map is shown once more, at its own scale.
_TIGHT = 0.15
_MAX_INSIDE = 6
_VECTORS = 2000  # More points are pixels in PDF and SVG: 100,000 would take 20 MB.


def map_of_clients(run: PlottedRun) -> Figure:
  """Draws local models as points, colored by cluster, marked by true cluster (Fig. 4).

  Clusters that are so tight that the map shows a spot are drawn below it again. Where
  no true cluster is known, the clusters have markers as well.

  Args:
    run: finished, so that its workdir holds clients.npz.
  """
  clients = run.clients
  sampled, assignment = clients['sampled'], clients['assignment']
  points, labels = _projected(clients)
  cluster = assignment[sampled] if len(assignment) else None
  truth = run.truth()
  colored = np.zeros(len(points), int) if cluster is None else cluster
  marked = colored if truth is None else truth.of_client[sampled]
  tight = _tight(points, colored)
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure = plt.figure(
      figsize=(5.4 + 1.8 * bool(tight), 4.2 + 1.5 * bool(tight)),
      layout='constrained' if tight else None,
    )
    grid = figure.add_gridspec(
      1 + bool(tight), max(1, len(tight)), height_ratios=[3, 1][: 1 + bool(tight)]
    )
    axis = figure.add_subplot(grid[0, :])
    _scatter(axis, points, colored, marked, np.ones(len(points), bool))
    for column, c in enumerate(tight):
      inside = figure.add_subplot(grid[1, column])
      _scatter(inside, points, colored, marked, colored == c)
      inside.set_title(f'cluster {c}', fontsize=chosen_style().small, color=color_of(c))
      inside.set_ylabel('' if column else 'enlarged', fontsize=chosen_style().small)
      inside.set(xticks=[], yticks=[])
    handles = []
    if cluster is not None:
      handles.append(_heading('color: cluster'))
      for c in np.unique(cluster).tolist():
        marker = _marker(c) if truth is None else 's'
        size = (assignment == c).sum()
        handles.append(_handle(f'{c} ({size} clients)', color_of(c), marker))
    if truth is not None:
      handles.append(_heading('marker: true cluster'))
      for t in np.unique(marked).tolist():
        handles.append(_handle(truth.names[t], '#555555', _marker(t)))
    if handles:
      axis.legend(handles=handles, loc='center left', bbox_to_anchor=(1, 0.5))
    axis.set(xlabel=labels[0], ylabel=labels[1], xticks=[], yticks=[])
    title = f'{in_figure(run.name)}: local models of {len(points)} clients'
    axis.set_title(f'{title}\nprincipal components', fontsize='medium')
  return figure


def _projected(
  clients: dict[str, np.ndarray],
) -> tuple[np.ndarray, tuple[str, str]]:
  """Points [S, >=2] of the sampled clients, and what the two axes are called."""
  points = clients['coordinates']
  shares = 100 * clients['variance']
  second = shares[1] if len(shares) > 1 else 0
  if points.shape[1] < 2:
    points = np.pad(points, ((0, 0), (0, 1)))
  return points, (f'PC 1 ({shares[0]:.0f} %)', f'PC 2 ({second:.0f} %)')


def _scatter(
  axis: Axes,
  points: np.ndarray,
  colored: np.ndarray,
  marked: np.ndarray,
  shown: np.ndarray,
) -> None:
  """Draws the points [S, 2] where `shown` [S], by cluster and true cluster [S]."""
  for t in np.unique(marked).tolist():
    for c in np.unique(colored).tolist():
      mine = shown & (marked == t) & (colored == c)
      axis.scatter(
        points[mine, 0],
        points[mine, 1],
        s=26,
        alpha=0.8,
        linewidths=0.3,
        edgecolors='white',
        color=color_of(c),
        marker=_marker(t),
        rasterized=len(points) > _VECTORS,
      )


def _tight(points: np.ndarray, colored: np.ndarray) -> list[int]:
  """Clusters whose points the map shows as one spot, if they are few."""
  span = np.ptp(points[:, :2], axis=0).max()
  tight = [
    int(c)
    for c in np.unique(colored)
    if (colored == c).sum() > 2
    and np.ptp(points[colored == c, :2], axis=0).max() < _TIGHT * span
  ]
  return tight if len(tight) <= _MAX_INSIDE else []


def _marker(i: int) -> str:
  """The marker of true cluster number i, or of cluster i where none is known."""
  return MARKERS[i % len(MARKERS)]


def _heading(text: str) -> Line2D:
  return Line2D([], [], linestyle='', label=text)


def _handle(label: str, color: str, marker: str) -> Line2D:
  return Line2D([], [], linestyle='', marker=marker, color=color, label=label)
