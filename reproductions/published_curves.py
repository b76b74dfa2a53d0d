"""Pictures of reproduced cells beside what was published: their values and curves."""

import hashlib
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fesem_jax.plots.style import (
  PALETTE,
  STYLE,
  curve_style,
  in_figure,
  legend_below,
  over_rounds,
)
from fesem_jax.utils.atomic_files import replacing

from .pictures import Line, Value

_LABELS = {
  'deployed': 'Test accuracy in %',
  'finetuned': 'Test accuracy of fine-tuned models in %',
  'unlabeled': 'Test accuracy without labels in %',
  'ari': 'Adjusted Rand index',
  'rounds': 'Rounds to the target',
  'seconds': 'Seconds',
}


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


def values_drawn(values: Sequence[Value]) -> Figure:
  """Draws published values and those here with their intervals, a panel a measure."""
  panels: dict[str, list[Value]] = {}
  for value in values:
    panels.setdefault(value.measure, []).append(value)
  heights = [1.2 + 0.36 * len(rows) for rows in panels.values()]
  with plt.rc_context(STYLE):
    figure = plt.figure(figsize=(8, sum(heights)), layout='constrained')
    axes = figure.subplots(
      len(panels), 1, squeeze=False, gridspec_kw={'height_ratios': heights}
    )[:, 0]
    for axis, (measure, rows) in zip(axes, panels.items(), strict=True):
      for place, row in enumerate(rows):
        of_theirs = PALETTE[1 if row.comparable else -1]
        dots = (
          (row.published, row.half_published, -0.15, of_theirs, 'o', 'white'),
          (row.here, row.half_here, 0.15, PALETTE[0], 'D', PALETTE[0]),
        )
        for mean, half, shift, color, marker, fill in dots:
          if mean is not None:
            axis.errorbar(
              mean, place + shift, xerr=half, color=color, marker=marker,
              markerfacecolor=fill, capsize=3,
            )  # fmt: skip
      axis.set_yticks(
        range(len(rows)), [textwrap.fill(in_figure(row.label, 90), 45) for row in rows]
      )
      axis.set_ylim(len(rows) - 0.5, -0.5)
      axis.set_xlabel(_LABELS[measure])
    figure.suptitle(
      'Circles: published (gray: not comparable). Diamonds: here. Bars: 95 %.',
      fontsize=10,
    )
  return figure


def digest(shown: Sequence[Any]) -> str:
  """A digest of what a figure shows, which `write` leaves in its file."""
  return hashlib.sha256(repr(list(shown)).encode()).hexdigest()[:16]


def shown(path: pathlib.Path) -> str | None:
  """The digest of what a file shows; None where there is none."""
  try:
    with Image.open(path) as image:
      return image.info.get('Comment')
  except OSError:
    return None


def write(what: Sequence[Any], path: pathlib.Path) -> None:
  """Draws lines or values and writes the figure as PNG, as a whole or not at all.

  A file that shows them stays: another Matplotlib would draw it otherwise.
  """
  mark = digest(what)
  if shown(path) == mark:
    return
  figure = drawn(what) if isinstance(what[0], Line) else values_drawn(what)
  path.parent.mkdir(parents=True, exist_ok=True)
  with replacing(path) as file:
    figure.savefig(file, format='png', bbox_inches='tight', metadata={'Comment': mark})
  plt.close(figure)
