"""Style of all figures: Matplotlib, colors, markers, fonts, a place for legends.

Clusters differ by marker or position, never by color alone.
"""

import os
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.utils import display
from fesem_jax.utils.palette import color_of
from fesem_jax.utils.ranges import check_choice

# Files only, whatever displays there are; notebooks have a backend that shows figures.
if 'inline' not in os.environ.get('MPLBACKEND', ''):
  matplotlib.use('Agg')

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


class Style(NamedTuple):
  """Fonts, sizes and files of figures; see `use_style`."""

  font: int  # points
  small: int  # points of what stands in rows and columns; 8 at least, where printed
  scale: float  # of figures
  columns: tuple[float, ...]  # inches: the widths of figures; () leaves them free
  further: tuple[str, ...]  # files of `save`


STYLES = {
  'page': Style(10, 8, 1.0, (), ()),
  'paper': Style(8, 8, 0.8, (3.4, 6.7), ('.pdf',)),
  'talk': Style(14, 12, 1.2, (), ('.pdf',)),
}
_CHOSEN = ['page']


def use_style(name: str) -> None:
  """Chooses the style of all figures that are drawn from now on.

  Args:
    name: 'page', the default; 'paper', with fonts of 8 points at the width of one or
      two columns, 3.4 or 6.7 inches; or 'talk', with larger fonts. The last two also
      write PDF. `save` gives a figure its size.

  Raises:
    UserError: on another name.
  """
  check_choice('style', name, tuple(STYLES))
  _CHOSEN[0] = name
  STYLE['font.size'] = STYLES[name].font


def chosen_style() -> Style:
  """The entry of `STYLES` that `use_style` chose."""
  return STYLES[_CHOSEN[0]]


def fitting(most: int, width: float, beside: float) -> int:
  """How many panels of some inches stand side by side: `most`, or fewer in columns.

  `beside` are the inches of what stands beside the panels.
  """
  style = chosen_style()
  if not style.columns:
    return most
  return max(1, min(most, int((style.columns[-1] / style.scale - beside) / width)))


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
  axis.xaxis.set_major_locator(ticker.MaxNLocator('auto', integer=True, min_n_ticks=1))


def over_bytes(axis: Axes) -> None:
  """Makes the horizontal axis, of 10^9 bytes, one of the unit that its numbers need."""
  unit, factor = display.unit_of(axis.get_xlim()[1], display.BYTES)
  axis.set_xlabel(f'Sent to and from clients ({unit})')
  axis.xaxis.set_major_formatter(lambda x, _: f'{x * factor:.4g}')


def label_over(axis: Axes, over: str) -> None:
  """Makes the horizontal axis one of 'rounds', 'gigabytes', or a column of records."""
  if over == 'rounds':
    over_rounds(axis)
  elif over == 'gigabytes':
    over_bytes(axis)
  else:
    of_rounds = ' of rounds' * (over == 'simulated_seconds')  # Starts are not timed.
    axis.set_xlabel(over.capitalize().replace('_', ' ') + of_rounds)


def legend_below(figure: Figure, *axes: Axes, title: str | None = None) -> None:
  """Puts a figure's legend below its axes, in as few rows as its width allows.

  The curves of `axes` have the labels; `title` is that of the legend.
  """
  legends = [one.get_legend_handles_labels() for one in axes]
  handles = [handle for handles, _ in legends for handle in handles]
  labels = [label for _, labels in legends for label in labels]
  for rows in range(1, len(labels) + 1):
    legend = figure.legend(
      handles,
      labels,
      loc='upper center',
      bbox_to_anchor=(0.5, 0),
      ncols=-(-len(labels) // rows),
      title=title,
    )
    room = figure.bbox.width * chosen_style().scale
    if legend.get_window_extent().width <= room or rows == len(labels):
      return
    legend.remove()
