"""Figures of methods, or rules, by the values of something."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style, legend_below
from fesem_jax.utils.display import in_figure, method_name, names_in_figure
from fesem_jax.utils.palette import color_of

# For each value mean and standard deviation, or None where there is no figure.
Curve = Sequence[tuple[float, float | None] | None]

_WIDE = 10  # Ratio of positive places from which on an axis is logarithmic.
# Between methods at one value that is no number: equal ones would hide each other.
_APART = 0.06


def by_value(
  panels: Mapping[tuple[str, str], Mapping[str, Curve]],
  name: str,
  texts: Sequence[str],
  places: Sequence[float] | None = None,
  said: Sequence[str] = (),
) -> Figure:
  """Draws a panel for each kind of figures, and in it a curve for each method.

  Args:
    panels: title and unit of each kind, e.g. ('ARI', '') -> label of each method -> its
      curve, drawn with a band of one standard deviation to either side.
    name: of what the values are of.
    texts: the values as they are called.
    places: the values as numbers; None: side by side, as they are no numbers.
    said: lines above the legend, on what the figures are of.

  Returns:
    The figure; panels of one unit share their vertical axis.
  """
  where = np.array(range(len(texts)) if places is None else places, float)
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, len(panels), figsize=(4.4 * len(panels), 3.6), squeeze=False
    )
    of_unit: dict[str, Axes] = {}
    for axis, ((title, unit), curves) in zip(axes[0], panels.items(), strict=True):
      axis.sharey(of_unit.setdefault(unit, axis))
      names = names_in_figure(map(method_name, curves))
      for i, curve in enumerate(curves.values()):
        # Lines break where there is no figure.
        means, spreads = np.transpose(
          [(f[0], f[1] or 0.0) if f else (np.nan, np.nan) for f in curve]
        )
        apart = _APART * (i - (len(curves) - 1) / 2) if places is None else 0.0
        x = where + apart
        axis.plot(x, means, label=names[i], **curve_style(i))
        axis.fill_between(
          x, means - spreads, means + spreads, color=color_of(i), alpha=0.15
        )
      if places is not None:
        _scale(axis, where)
      axis.set_xticks(where, [in_figure(text) for text in texts], minor=False)
      axis.set_xticks([], minor=True)
      axis.set_title(in_figure(title, 60))
      axis.set_xlabel(in_figure(name))
      axis.set_ylabel(unit)
      if unit == 'ARI':  # At most 1; a little more shows the markers whole.
        axis.set_ylim(min(-0.03, axis.get_ylim()[0]), 1.03)
    figure.tight_layout()
    figures = [f for of in panels.values() for curve in of.values() for f in curve]
    spread = any(f is not None and f[1] for f in figures)
    lines = [textwrap.fill(in_figure(text, 300), 80) for text in said]
    lines += ['bands: one standard deviation to either side'] * spread
    legend_below(figure, axes[0, 0], title='\n'.join(lines) or None)
  return figure


def _scale(axis: Axes, places: np.ndarray) -> None:
  """Makes the axis of values logarithmic where they are of several magnitudes."""
  positive = places[places > 0]
  if places.min() < 0 or positive.max(initial=0) < _WIDE * positive.min(initial=np.inf):
    return
  if len(positive) == len(places):
    axis.set_xscale('log')
  else:
    axis.set_xscale('symlog', linthresh=positive.min(), linscale=0.5)
