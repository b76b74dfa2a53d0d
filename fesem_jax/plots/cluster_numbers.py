"""Figures by the number of clusters."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style
from fesem_jax.utils.display import in_figure

# Title of each panel -> its curves, name -> key of the rows; NAME_mean has NAME_std.
_Panels = Mapping[str, Mapping[str, str]]
_CRITERIA: _Panels = {
  'Eq. 6: mean squared distance': {'': 'distance_mean'},
  'Silhouette, common start': {
    'clients': 'silhouette_mean', 'without clusters': 'silhouette_of_one_cloud'},
  'Stability: ARI between seeds': {'': 'stability'},
}  # fmt: skip


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
      `silhouette_of_one_cloud` and `stability`; None where there is no figure; and,
      where some diverged, the number of `seeds` and how many `diverged`.
    recommended: K, or None.
    title: of the figure.
    figure_title: of the panel of the fine-tuned and deployed models.
  """
  scores = {'fine-tuned': 'finetuned_mean', 'deployed': 'deployed_mean'}
  heading = in_figure(title, 120)
  if recommended is not None:
    heading += f'\ndotted line: the recommended K = {recommended}'
  if any(row[key] for row in rows for key in row if key.endswith('_std')):
    heading += '\nbars: one standard deviation over seeds'
  lacking = [
    str(row['num_clusters'])
    for row in rows
    if 0 < row.get('diverged', 0) < row['seeds']
  ]
  if lacking:
    heading += f'\nK = {", ".join(lacking)}: without the seeds that diverged'
  figure, axes = _by_k(rows, {figure_title: scores, **_CRITERIA}, heading)
  if recommended is not None:
    for axis in figure.axes:
      axis.axvline(recommended, color='black', linestyle=':', linewidth=1.2)
  for key, axis in axes.items():
    if key == 'distance_mean':
      axis.set_ylim(bottom=0)
    elif key == 'stability':
      axis.set_ylim(-0.1, 1.05)
  return figure


def _by_k(
  rows: Sequence[Mapping[str, Any]], every: _Panels, title: str
) -> tuple[Figure, dict[str, Axes]]:
  """Draws panels side by side, with deviations over seeds where there are some.

  Returns the figure, and the axes of each panel by the key of its first curve. Panels
  without a number are left out.
  """
  panels = {
    label: curves
    for label, curves in every.items()
    if any(row[key] is not None for row in rows for key in curves.values())
  } or dict(list(every.items())[:1])
  by_key = {}
  ks = [row['num_clusters'] for row in rows]
  with plt.rc_context(STYLE):
    size = (3.6 * len(panels), 3.8)
    figure, axes = plt.subplots(
      1, len(panels), figsize=size, layout='constrained', squeeze=False
    )
    for axis, (label, curves) in zip(axes[0], panels.items(), strict=True):
      by_key[next(iter(curves.values()))] = axis
      for i, (name, key) in enumerate(curves.items()):
        known = [row for row in rows if row[key] is not None]
        spread = [row.get(f'{key.removesuffix("_mean")}_std') or 0.0 for row in known]
        axis.errorbar(
          [row['num_clusters'] for row in known],
          [row[key] for row in known],
          yerr=spread if any(spread) else None,
          linestyle='--' if i else '-',
          capsize=3,
          label=name or None,
          **curve_style(i),
        )
      axis.set_xlabel('Clusters K')
      # The legend is between title and panel, where it hides no curve.
      axis.set_title(label, fontsize='medium', pad=26)
      axis.set_xlim(ks[0] - 0.5, ks[-1] + 0.5)
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
      if len(curves) > 1:
        axis.legend(loc='lower left', bbox_to_anchor=(0, 1), ncols=2)
    figure.suptitle(title, fontsize='medium')
  return figure, by_key
