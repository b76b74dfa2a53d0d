"""Curves of reproduced runs beside the figures that were published."""

import hashlib
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fesem_jax.plots.style import STYLE, curve_style, legend_below, over_rounds
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.display import in_figure

_LABELS = {
  'deployed': 'Test accuracy in %',
  'finetuned': 'Test accuracy of fine-tuned models in %',
  'ari': 'Adjusted Rand index',
}


class Line(NamedTuple):
  """One run."""

  label: str  # in the legend
  points: Sequence[Sequence[float]]  # (round, value) of each evaluated round
  published: float | None  # value of a dashed line; None for none
  measure: str  # a key of `_LABELS`


def drawn(lines: Sequence[Line]) -> Figure:
  """Draws curves over rounds, and dashed lines at what is published.

  Lines whose vertical axes have different labels are drawn side by side. The axis of
  rounds is logarithmic where runs differ tenfold in length.
  """
  lengths = [line.points[-1][0] for line in lines]
  labels = list(dict.fromkeys(_LABELS[line.measure] for line in lines))
  with plt.rc_context(STYLE):
    size = (max(8, 5 * len(labels)), 4.5)
    figure = plt.figure(figsize=size, layout='constrained')
    axes = figure.subplots(1, len(labels), squeeze=False)[0]
    for label, axis in zip(labels, axes, strict=True):
      for i, line in enumerate(lines):
        if _LABELS[line.measure] == label:
          _add(axis, line, i)
      over_rounds(axis)
      if max(lengths) >= 10 * min(lengths):
        axis.set_xscale('log')
      axis.set_ylabel(label)
    # Tables beside the figure have means over seeds.
    title = 'First seed of each curve.'
    if any(line.published is not None for line in lines):
      title = 'Solid: here, first seed. Dashed: published.'
    figure.suptitle(title, fontsize=10)
    legend_below(figure, *axes)
  return figure


def _add(axis: Axes, line: Line, number: int) -> None:
  """Adds the number-th line of the figure, and what is published of it."""
  rounds, values = np.array(line.points, float).T
  style = curve_style(number, rounds.astype(int))
  axis.plot(rounds, values, label=in_figure(line.label, 80), **style)
  if line.published is not None:
    axis.axhline(line.published, color=style['color'], ls='--', lw=1, alpha=0.7)


def digest(lines: Sequence[Line]) -> str:
  """A digest of what a figure shows, which `write` leaves in its file."""
  return hashlib.sha256(repr(list(lines)).encode()).hexdigest()[:16]


def shown(path: pathlib.Path) -> str | None:
  """The digest of the lines that a file shows; None where there is none."""
  try:
    with Image.open(path) as image:
      return image.info.get('Comment')
  except OSError:
    return None


def write(lines: Sequence[Line], path: pathlib.Path) -> None:
  """Draws lines and writes the figure as PNG, as a whole or not at all.

  A file that shows these lines stays: another Matplotlib would draw it otherwise.
  """
  told = digest(lines)
  if shown(path) == told:
    return
  figure = drawn(lines)
  path.parent.mkdir(parents=True, exist_ok=True)
  with replacing(path) as file:
    figure.savefig(file, format='png', bbox_inches='tight', metadata={'Comment': told})
  plt.close(figure)
