"""Style of all figures: Matplotlib, colors, markers, fonts, a place for legends.

Clusters differ by marker or position, never by color alone.
"""

from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.utils.palette import color_of

matplotlib.use('Agg')  # Files only, whatever displays there are.

MARKERS = 'osD^vPX*<>hd'
STYLE: dict[Any, Any] = {
  'figure.dpi': 150,
  'font.size': 10,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.alpha': 0.3,
  'legend.frameon': False,
}


def mark_every(rounds: np.ndarray, most: int = 12) -> int:
  """Every how many of the recorded rounds ([R] int, in order) have a marker.

  Where rounds were left out each recorded one has, so that a line between two markers
  is not taken for records; elsewhere about `most`.
  """
  gaps = len(rounds) > 1 and np.diff(rounds).max() > 1
  return 1 if gaps else max(1, len(rounds) // most)


def curve_style(
  i: int, rounds: np.ndarray | None = None, most_markers: int = 12
) -> dict[str, Any]:
  """How curve number i is drawn, with markers at some of its rounds, if given."""
  style = {
    'color': color_of(i),
    'marker': MARKERS[i % len(MARKERS)],
    'markersize': 4,
  }
  if rounds is not None:
    style['markevery'] = mark_every(rounds, most_markers)
    style['clip_on'] = False  # Or markers at the ends would be cut off.
  return style


def over_rounds(axis: Axes) -> None:
  """Makes the horizontal axis one of rounds."""
  axis.set_xlabel('Round')
  axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))


def legend_below(figure: Figure, *axes: Axes, title: str | None = None) -> None:
  """Puts a figure's legend below its axes, in as few rows as its width allows.

  The curves of `axes` have the labels; `title` is that of the legend.
  """
  found = [one.get_legend_handles_labels() for one in axes]
  handles = [handle for handles, _ in found for handle in handles]
  labels = [label for _, labels in found for label in labels]
  for rows in range(1, len(labels) + 1):
    legend = figure.legend(
      handles,
      labels,
      loc='upper center',
      bbox_to_anchor=(0.5, 0),
      ncols=-(-len(labels) // rows),
      title=title,
    )
    if legend.get_window_extent().width <= figure.bbox.width or rows == len(labels):
      return
    legend.remove()
