"""Accuracy of the honest clients by the share of bad ones."""

from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.display import in_figure
from fesem_jax.plots.style import MARKERS, STYLE, color_of

# (share of bad clients, mean, standard deviation or None), both in percent.
Curve = Sequence[tuple[float, float, float | None]]


def accuracy_by_bad_clients(
  panels: Mapping[str, Mapping[str, Curve]], corrupt: str
) -> Figure:
  """Draws a panel for each kind of figures, and in it a curve for each method.

  Args:
    panels: name of each kind, e.g. 'Deployed' -> label of each method -> its curve.
    corrupt: what bad clients do, e.g. 'sign_flip'.
  """
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, len(panels), figsize=(4.8 * len(panels), 3.6), squeeze=False, sharey=True
    )
    for axis, (kind, curves) in zip(axes[0], panels.items(), strict=True):
      for i, (label, curve) in enumerate(curves.items()):
        shares = [100 * share for share, *_ in curve]
        axis.errorbar(
          shares,
          [mean for _, mean, _ in curve],
          [std or 0 for *_, std in curve],
          color=color_of(i),
          label=in_figure(label),
          marker=MARKERS[i % len(MARKERS)],
          markersize=5,
          capsize=2,
          clip_on=False,
        )
      axis.set_xlabel(f'Bad clients (%), {corrupt.replace("_", " ")}')
      axis.set_title(kind)
    axes[0, 0].set_ylabel('Micro accuracy of honest clients (%)')
    figure.tight_layout()
    figure.legend(
      *axes[0, 0].get_legend_handles_labels(),
      loc='upper center',
      bbox_to_anchor=(0.5, 0),
      ncols=2,
    )
  return figure
