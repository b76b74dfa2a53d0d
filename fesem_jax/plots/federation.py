"""The data of a federation: classes and numbers of examples of its clients."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.data.class_names import class_names, most_frequent
from fesem_jax.plots.style import STYLE, chosen_style
from fesem_jax.results.truth import true_clusters
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import PALETTE, color_of

# More cannot be told apart by color and hatching.
_MAX_CLASSES = 10
_CHARACTERS = 110  # Of the names of true clusters above the bars, side by side.


def classes_of_clients(
  counts: np.ndarray,
  title: str,
  cluster: np.ndarray | None = None,
  cluster_names: Sequence[str] | np.ndarray | None = None,
  names: Sequence[str] | None = None,
) -> Figure:
  """Draws the number of examples of each class on each client, as stacked bars.

  Args:
    counts: [M, L] integer number of examples.
    title: heading.
    cluster: [M] true cluster; bars are sorted by it, if given, and then by the most
      frequent class. Of more than 80 clients, 80 at even distances are shown; of more
      than 10 classes, the most frequent ten and the sum of the rest.
    cluster_names: what true clusters 0, 1, ... are called where `cluster` is int.
    names: L names of the classes; numbers from 0 if None.
  """
  truth = true_clusters(cluster, cluster_names, in_figure)
  of_client = np.zeros(len(counts), int) if truth is None else truth.of_client
  order = np.lexsort([counts.argmax(axis=1), of_client])
  shown = order[np.linspace(0, len(order) - 1, min(len(order), 80)).astype(int)]
  counts, names = most_frequent(
    counts, names or class_names('', counts.shape[1]), _MAX_CLASSES
  )
  names = list(map(in_figure, names))
  with plt.rc_context(STYLE | {'axes.grid': False, 'hatch.linewidth': 0.8}):
    figure, axis = plt.subplots(figsize=(8, 3.4), layout='constrained')
    edges, bottom = np.arange(len(shown) + 1) - 0.5, np.zeros(len(shown))
    for label, name in enumerate(names):
      top = bottom + counts[shown, label]
      # Classes beyond the palette have its colors again, and hatching.
      look: dict[str, Any] = {'color': color_of(label)}
      if label == _MAX_CLASSES:
        look = {'color': '#dddddd'}
      elif label >= len(PALETTE):
        look = {'facecolor': color_of(label), 'edgecolor': 'white', 'hatch': '/////'}
      axis.stairs(
        top, edges, baseline=bottom, fill=True, linewidth=0, label=name, **look
      )
      axis.stairs(top, edges, baseline=None, color='white', linewidth=0.5)
      bottom = top
    sorting = 'sorted by their most frequent class'
    if truth is not None:
      _mark_clusters(axis, of_client[shown], truth.names)
      sorting = 'sorted by true cluster (dotted lines between them), then by class'
    many = f'{len(shown)} of ' if len(shown) < len(order) else ''
    axis.set_xlabel(f'{many}{len(order)} clients, one bar each, {sorting}')
    axis.set_ylabel('Training examples')
    axis.set_title(in_figure(title, 80), pad=6 if truth is None else 16)
    axis.set_xlim(-0.5, len(shown) - 0.5)
    axis.set_xticks([])
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(  # In the order of the bars, from the top.
      handles[::-1],
      labels[::-1],
      title='class',
      loc='center left',
      bbox_to_anchor=(1, 0.5),
    )
  return figure


def _mark_clusters(axis: Axes, cluster: np.ndarray, names: Sequence[str]) -> None:
  """Draws lines between true clusters ([S], sorted), and their names where they fit."""
  begins = np.flatnonzero(np.diff(cluster)) + 1
  for at in begins:
    axis.axvline(at - 0.5, color='black', linewidth=1, linestyle=':')
  bounds = [0, *begins.tolist(), len(cluster)]
  for first, last in itertools.pairwise(bounds):
    name = names[cluster[first]]
    if (last - first) / len(cluster) * _CHARACTERS >= len(name):
      axis.annotate(
        name,
        ((first + last) / 2 - 0.5, 1),
        xycoords=('data', 'axes fraction'),
        xytext=(0, 2),
        textcoords='offset points',
        ha='center',
        fontsize=chosen_style().small,
      )


def client_sizes(sizes: np.ndarray, title: str) -> Figure:
  """Draws a histogram of how many examples clients have.

  Args:
    sizes: [M] examples of each client.
    title: heading.
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
