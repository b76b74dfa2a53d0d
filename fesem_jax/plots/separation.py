"""Separation of clusters of clients, by their number."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style
from fesem_jax.utils.display import in_figure

# Panels: title, and the curves as name -> key of the rows.
_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
  ('Variance between / within', {'clients': 'pseudo_f', 'one cloud': 'of_one_cloud'}),
  ('Explained share of differences', {'': 'explained'}),
  ('Agreement of halves (ARI)', {'': 'agreement'}),
)


def separation_by_k(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
  """Draws how far apart K clusters of clients are.

  Args:
    rows: one for each K, with the fields of `analysis.separation.Separation`.
    title: of the figure.
  """
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, 3, figsize=(10.8, 3.6), layout='constrained')
    for axis, (label, curves) in zip(axes, _PANELS, strict=True):
      for i, (name, key) in enumerate(curves.items()):
        known = [row for row in rows if row[key] is not None]
        axis.plot(
          [row['num_clusters'] for row in known],
          [row[key] for row in known],
          linestyle='--' if i else '-',
          label=name or None,
          **curve_style(i),
        )
      axis.set_xlabel('Clusters K')
      axis.set_title(label, fontsize=10)
      tried = [row['num_clusters'] for row in rows]
      axis.set_xlim(tried[0] - 0.5, tried[-1] + 0.5)
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
      if len(curves) > 1:
        axis.legend()
    axes[0].set_ylim(bottom=0)
    for axis in axes[1:]:
      axis.set_ylim(-0.1, 1.05)
    figure.suptitle(in_figure(title, 120), fontsize=10)
  return figure
