"""Figures of the criteria for each number of clusters."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style
from fesem_jax.utils.display import in_figure

# Panels: title, and the curves as name -> key of the rows; NAME_mean has NAME_std.
_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
  ('',  # The first figure of the task.
    {'fine-tuned': 'finetuned_mean', 'deployed': 'deployed_mean'}),
  ('Eq. 6: mean squared distance', {'': 'distance_mean'}),
  ('Silhouette, common start',
    {'clients': 'silhouette_mean', 'one cloud': 'silhouette_of_one_cloud'}),
  ('Stability: ARI between seeds', {'': 'stability'}),
)  # fmt: skip


def choosing_k(
  rows: Sequence[Mapping[str, Any]],
  recommended: int | None,
  title: str,
  figure_title: str = 'Micro accuracy (%)',
) -> Figure:
  """Draws the figures of each number of clusters, the recommended one marked.

  Args:
    rows: one for each K, with `num_clusters`, `finetuned_mean`, `deployed_mean`,
      `distance_mean`, `silhouette_mean` (each also as `_std`, None with one seed),
      `silhouette_of_one_cloud` and `stability`; None where there is no figure.
    recommended: K, or None.
    title: of the figure.
    figure_title: of the panel of the fine-tuned and deployed models.
  """
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, len(_PANELS), figsize=(3.6 * len(_PANELS), 3.8), layout='constrained'
    )
    for axis, (label, curves) in zip(axes, _PANELS, strict=True):
      for i, (name, key) in enumerate(curves.items()):
        _curve(axis, rows, key, i, name)
      if recommended is not None:
        axis.axvline(recommended, color='black', linestyle=':', linewidth=1.2)
      axis.set_xlabel('Clusters K')
      # The legend is between title and panel, where it hides no curve.
      axis.set_title(label or figure_title, fontsize=10, pad=26)
      tried = [row['num_clusters'] for row in rows]
      axis.set_xlim(tried[0] - 0.5, tried[-1] + 0.5)
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
      if len(curves) > 1:
        axis.legend(loc='lower left', bbox_to_anchor=(0, 1), ncols=2)
    axes[1].set_ylim(bottom=0)
    axes[3].set_ylim(-0.1, 1.05)
    heading = in_figure(title, 120)
    if recommended is not None:
      heading += f'\ndotted line: the recommended K = {recommended}'
    if any(row[key] for row in rows for key in row if key.endswith('_std')):
      heading += '\nbars: one standard deviation over seeds'
    figure.suptitle(heading, fontsize=10)
  return figure


def _curve(
  axis: Axes, rows: Sequence[Mapping[str, Any]], key: str, i: int, name: str
) -> None:
  """Draws a figure by K, with its standard deviation over seeds where there is one."""
  known = [row for row in rows if row[key] is not None]
  spread = key.replace('_mean', '_std')
  deviations = [row[spread] if spread != key else None for row in known]
  axis.errorbar(
    [row['num_clusters'] for row in known],
    [row[key] for row in known],
    yerr=[d or 0.0 for d in deviations] if any(deviations) else None,
    linestyle='--' if i else '-',
    capsize=3,
    label=name or None,
    **curve_style(i),
  )
