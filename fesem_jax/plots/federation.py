"""The data of a federation: classes and numbers of examples of its clients."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from fesem_jax.display import in_figure
from fesem_jax.plots.style import PALETTE, STYLE

# More cannot be told apart by color.
_MAX_CLASSES = 10


def classes_of_clients(
  counts: np.ndarray, title: str, cluster: np.ndarray | None = None
) -> Figure:
  """Draws the number of examples of each class on each client, as stacked bars.

  Args:
    counts: [M, L] integer number of examples.
    title: heading.
    cluster: [M] true cluster or assignment; bars are sorted by it, if given, and
      then by the most frequent class. Of more than 80 clients, 80 at even distances
      are shown; of more than 10 classes, the most frequent ten and the sum of the rest.

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
  names = [str(label) for label in range(counts.shape[1])]
  if len(names) > _MAX_CLASSES:
    counts, names = _most_frequent(counts)
  colors: Any = PALETTE
  if len(names) > len(PALETTE):
    colors = [*plt.get_cmap('tab10').colors, '#dddddd']  # type: ignore[attr-defined]
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure, axis = plt.subplots(figsize=(8, 3.4), layout='constrained')
    edges, bottom = np.arange(len(shown) + 1) - 0.5, np.zeros(len(shown))
    for label, name in enumerate(names):
      top = bottom + counts[shown, label]
      axis.stairs(
        top, edges, baseline=bottom, fill=True, color=colors[label], label=name
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
    axis.legend(title='class', loc='center left', bbox_to_anchor=(1, 0.5))
  return figure


def _most_frequent(counts: np.ndarray) -> tuple[np.ndarray, list[str]]:
  """Counts [M, 11] of the most frequent ten classes and of all others, and names."""
  order = np.argsort(-counts.sum(axis=0), kind='stable')
  top, others = np.sort(order[:_MAX_CLASSES]), order[_MAX_CLASSES:]
  rest = counts[:, others].sum(axis=1, keepdims=True)
  names = [*map(str, top), f'{len(others)} others']
  return np.concatenate([counts[:, top], rest], axis=1), names


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
