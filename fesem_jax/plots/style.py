"""Style of all figures: Matplotlib's settings, colors, markers, legends, files.

Clusters differ by marker or position, never by color alone.
"""

import os
import pathlib
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.display import printable

# Files only, whatever displays there are; notebooks have a backend that shows figures.
if 'inline' not in os.environ.get('MPLBACKEND', ''):
  matplotlib.use('Agg')

# The color-blind safe palette of Okabe and Ito.
PALETTE = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7',
  '#E69F00', '#56B4E9', '#000000', '#999999',
)  # fmt: skip
MARKERS = 'osD^vPX*<>hd'
STYLE: dict[Any, Any] = {
  'figure.dpi': 150,
  'font.size': 10,
  'axes.titlesize': 'medium',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.alpha': 0.3,
  'legend.frameon': False,
  'svg.hashsalt': 'fesem_jax',  # The same figure gives the same file.
}
SMALL = 8  # Points of text in rows, columns and legends: legible in print.


def color_of(i: int) -> str:
  """The color of the i-th run or cluster."""
  return PALETTE[i % len(PALETTE)]


def in_figure(value: object, limit: int = 40) -> str:
  """`printable`, for Matplotlib: without formulas."""
  return printable(value, limit).replace('$', r'\$')


def names_in_figure(methods: Iterable[object]) -> list[str]:
  """Texts of methods for Matplotlib; long names have several lines."""
  # A legend leaves out what begins with an underscore.
  names = [' ' * (x[:1] == '_') + x for x in (printable(m, 255) for m in methods)]
  lines = [textwrap.wrap(n.replace(';', '; ') if len(n) > 40 else n, 40) for n in names]
  return ['\n'.join(map(in_figure, name)) for name in lines]


def curve_style(i: int, rounds: np.ndarray | None = None) -> dict[str, Any]:
  """How curve number i is drawn, with markers at some of its rounds."""
  style = {'color': color_of(i), 'marker': MARKERS[i % len(MARKERS)], 'markersize': 4}
  if rounds is not None:
    gaps = len(rounds) > 1 and np.diff(rounds).max() > 1
    style['markevery'] = 1 if gaps else max(1, len(rounds) // 12)
    style['clip_on'] = False  # Or markers at the ends would be cut off.
  return style


def over_rounds(ax: Axes) -> None:
  """Makes the horizontal axis one of rounds."""
  ax.set_xlabel('Round')
  ax.xaxis.set_major_locator(ticker.MaxNLocator('auto', integer=True, min_n_ticks=1))


def legend_below(figure: Figure, *axes: Axes, title: str | None = None) -> None:
  """Puts a legend of the curves of axes below a figure, in as few rows as have room."""
  legends = [ax.get_legend_handles_labels() for ax in axes]
  handles = [handle for handles, _ in legends for handle in handles]
  labels = [label for _, labels in legends for label in labels]
  longest = max(map(len, '\n'.join(labels).split('\n')))
  room = int(figure.get_size_inches()[0] / (0.5 + 0.08 * longest))
  columns = max(1, min(room, len(labels)))
  figure.legend(handles, labels, loc='outside lower center', ncols=columns, title=title)


def save(
  figure: Figure, path: str | pathlib.Path, formats: Sequence[str] = ()
) -> list[pathlib.Path]:
  """Writes a figure and closes it; returns the paths of the files.

  `path` has no suffix; its folder is created if absent. `formats` are of pdf, png and
  svg, by default png and svg.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  written = []
  for kind in formats or ('png', 'svg'):
    written.append(path.with_name(f'{path.name}.{kind}'))
    dated = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}.get(kind)
    with replacing(written[-1]) as out, plt.rc_context(STYLE):
      figure.savefig(out, format=kind, metadata=dated)
  plt.close(figure)
  return written
