"""The data of a federation: classes and numbers of examples of its clients."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from fesem_jax.display import in_figure
from fesem_jax.plots.style import PALETTE, STYLE


def classes_of_clients(
  counts: np.ndarray, title: str, cluster: np.ndarray | None = None
) -> Figure:
  """Draws the number of examples of each class on each client, as stacked bars.

  Args:
    counts: [M, L] integer number of examples.
    title: heading.
    cluster: [M] true cluster or assignment; bars are sorted by it, if given, and
      then by the most frequent class. Of more than 80 clients, 80 at even distances
      are shown.

  Returns:
    The figure.
  """
  if cluster is not None:  # Names can be sorted, but not subtracted.
    cluster = np.unique(cluster, return_inverse=True)[1]
  keys = (
    [counts.argmax(axis=1)] if cluster is None else [counts.argmax(axis=1), cluster]
  )
  order = np.lexsort(keys)
  shown = order[np.linspace(0, len(order) - 1, min(len(order), 80)).astype(int)]
  num_classes = counts.shape[1]
  colors: Any = PALETTE  # Of few classes; of many, a scale of colors.
  if num_classes > len(PALETTE):
    colors = plt.get_cmap('turbo')(np.linspace(0.02, 0.98, num_classes))
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure, axis = plt.subplots(figsize=(8, 3.4), layout='constrained')
    edges, bottom = np.arange(len(shown) + 1) - 0.5, np.zeros(len(shown))
    for label in range(num_classes):
      top = bottom + counts[shown, label]
      axis.stairs(
        top, edges, baseline=bottom, fill=True, color=colors[label], label=str(label)
      )
      bottom = top
    if cluster is not None:
      for at in np.flatnonzero(np.diff(cluster[shown])):
        axis.axvline(at + 0.5, color='black', linewidth=1, linestyle=':')
    of_all = (
      f'{len(shown)} of {len(order)} clients'
      if len(shown) < len(order)
      else (f'{len(order)} clients')
    )
    axis.set(xlabel=of_all, ylabel='Training examples', title=in_figure(title, 80))
    axis.set_xlim(-0.5, len(shown) - 0.5)
    axis.set_xticks([])
    if num_classes <= 12:
      axis.legend(title='class', loc='center left', bbox_to_anchor=(1, 0.5))
    else:
      few = matplotlib.colors.ListedColormap(colors)
      norm = matplotlib.colors.BoundaryNorm(
        np.arange(num_classes + 1) - 0.5, num_classes
      )
      mappable = matplotlib.cm.ScalarMappable(norm, few)
      ticks = ticker.MaxNLocator(7, integer=True)
      scale = figure.colorbar(mappable, ax=axis, label='class', ticks=ticks)
      scale.ax.minorticks_off()
  return figure


def client_sizes(sizes: np.ndarray, title: str) -> Figure:
  """Draws a histogram of how many examples clients have.

  Args:
    sizes: [M] examples of each client.
    title: heading.

  Returns:
    The figure.
  """
  with plt.rc_context(STYLE):
    figure, axis = plt.subplots(figsize=(5, 3.2), layout='constrained')
    axis.hist(sizes, bins='auto' if len(np.unique(sizes)) > 1 else 1, color=PALETTE[0])
    axis.axvline(np.median(sizes), color=PALETTE[1], linestyle='--')
    axis.set(
      xlabel='Examples (dashed: median)', ylabel='Clients', title=in_figure(title, 80)
    )
    axis.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  return figure
