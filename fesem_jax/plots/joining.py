"""Accuracy of new clients by their number of examples."""

from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style, legend_below
from fesem_jax.utils.display import in_figure

# Lines beside each other at one number, so that their deviations do not hide others.
_APART = 0.09


def accuracy_by_examples(
  numbers: Sequence[str],
  panels: Mapping[str, Mapping[str, Sequence[tuple[float, float | None]]]],
  label: str = 'Micro accuracy (%)',
) -> Figure:
  """Draws accuracy, or another figure, over the number of training examples.

  There is a line for each rule.

  Args:
    numbers: of training examples, as they are called, from left to right.
    panels: title -> rule -> mean micro accuracy and its standard deviation over runs,
      or None, in percent, for each number.
    label: of the vertical axis.
  """
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, len(panels), figsize=(4.2 * len(panels), 3.6), sharey=True, squeeze=False
    )
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
      for i, (rule, figures) in enumerate(lines.items()):
        shift = _APART * (i - (len(lines) - 1) / 2)
        axis.errorbar(
          [place + shift for place in range(len(numbers))],
          [mean for mean, _ in figures],
          yerr=[deviation or 0.0 for _, deviation in figures],
          capsize=2,
          label=in_figure(rule),
          **curve_style(i),
        )
      axis.set_title(in_figure(title))
      axis.set_xlabel('Training examples of a new client')
      axis.set_xticks(range(len(numbers)), [in_figure(number) for number in numbers])
    axes[0, 0].set_ylabel(label)
    figure.tight_layout()
    spread = any(d for lines in panels.values() for f in lines.values() for _, d in f)
    bars = 'bars: one standard deviation over runs, to either side' if spread else None
    legend_below(figure, axes[0, 0], title=bars)
  return figure
