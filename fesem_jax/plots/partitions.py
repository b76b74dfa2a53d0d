"""Classes and sizes of clients, of one federation or several partitions of the data."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fesem_jax.data.class_names import class_names
from fesem_jax.evaluation.label_skew import label_skew
from fesem_jax.plots.style import STYLE, chosen_style, fitting
from fesem_jax.run.results.truth import true_clusters
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import PALETTE, color_of

_ACROSS = 4  # Partitions in a row, at most.
_SHOWN = 80  # More clients are narrower than a line.
_NAMED = 8  # True clusters in a legend, as many as colors.
_NAMED_CLASSES = 12  # Beside the rows.


class DealtClients(NamedTuple):
  """The examples of each class on each client of a partition.

  Attributes:
    counts: [M, L] int training examples of each class on each client; L is 1 where
      there are no classes, as in a regression.
    clusters: [M] true cluster of each client, or None.
    cluster_names: what clusters 0, 1, ... are called where `clusters` are int.
  """

  counts: np.ndarray
  clusters: np.ndarray | None = None
  cluster_names: Sequence[str] | np.ndarray | None = None


def compared_partitions(
  panels: Mapping[str, DealtClients], title: str, names: Sequence[str] | None = None
) -> Figure:
  """Draws classes, sizes and true clusters of clients, a panel for each partition.

  Above, the share of each class in a client's examples; below, how many a client has,
  in the color of its true cluster. Clients are in the order of their clusters; of more
  than 80, 80 at even distances are shown.

  Args:
    panels: name of each partition -> what it deals.
    title: heading.
    names: L names of the classes; numbers from 0 if None.
  """
  lines = -(-len(panels) // fitting(_ACROSS, 2.4, 1.0))
  across = -(-len(panels) // lines)
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure = plt.figure(
      # A heading is wider than one panel.
      figsize=(1.0 + max(2.4 * across, 3.4), 0.4 + 4.2 * lines),
      layout='constrained',
    )
    grid = figure.add_gridspec(2 * lines, across, height_ratios=[2.2, 1] * lines)
    heats: list[Axes] = []
    for i, (name, dealt) in enumerate(panels.items()):
      line, column = divmod(i, across)
      heats.append(figure.add_subplot(grid[2 * line, column]))
      sizes = figure.add_subplot(grid[2 * line + 1, column])
      image = _draw(heats[-1], sizes, name, dealt)
      heats[-1].tick_params(labelleft=column == 0)
      if column == 0:
        heats[-1].set_ylabel('Class' if dealt.counts.shape[1] > 1 else '')
        _name_classes(heats[-1], names or class_names('', dealt.counts.shape[1]))
        sizes.set_ylabel('Examples')
    figure.colorbar(
      image,
      ax=heats,
      label="Share of a client's examples",
      ticks=[0, 0.1, 0.25, 0.5, 1],
      fraction=0.02,
    )
    figure.suptitle(in_figure(title, 100))
  return figure


def _draw(heat: Axes, bars: Axes, name: str, dealt: DealtClients) -> AxesImage:
  """Draws one partition: classes of clients, and their sizes."""
  truth = true_clusters(dealt.clusters, dealt.cluster_names, in_figure)
  of_client = np.zeros(len(dealt.counts), int) if truth is None else truth.of_client
  order = np.argsort(of_client, kind='stable')
  shown = order[np.linspace(0, len(order) - 1, min(len(order), _SHOWN)).astype(int)]
  counts, cluster = dealt.counts[shown], of_client[shown]
  sizes = counts.sum(axis=1)
  image = heat.imshow(
    (counts / np.maximum(1, sizes)[:, None]).T,
    cmap='Blues',
    norm=colors.PowerNorm(0.5, 0, 1),  # Small shares are to be told apart, too.
    aspect='auto',
    origin='lower',
    interpolation='nearest',
  )
  bars.bar(
    np.arange(len(shown)), sizes, width=1.0, color=[color_of(int(c)) for c in cluster]
  )
  for axis in (heat, bars):
    for at in np.flatnonzero(np.diff(cluster)):
      axis.axvline(at + 0.5, color='black', linewidth=1, linestyle=':')
    axis.set_xlim(-0.5, len(shown) - 0.5)
    axis.set_xticks([])
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
  title = in_figure(name, 40)
  if dealt.counts.shape[1] > 1:
    title += f'\nlabel skew {label_skew(dealt.counts):.2f}'
  else:
    heat.set_yticks([])  # Without classes every client's examples are all alike.
  heat.set_title(title, fontsize=chosen_style().small, pad=4)
  many = f'{len(shown)} of ' if len(shown) < len(order) else ''
  bars.set_xlabel(f'{many}{len(order)} clients', fontsize=chosen_style().small)
  if truth is not None:
    names = truth.names[:_NAMED]
    handles = [Patch(color=color_of(k), label=name) for k, name in enumerate(names)]
    if others := len(truth.names) - len(names):
      handles.append(Patch(color=PALETTE[-1], label=f'{others} others'))
    bars.legend(
      handles=handles,
      fontsize=chosen_style().small,
      ncols=2,
      handlelength=0.8,
      handletextpad=0.4,
      columnspacing=0.8,
      loc='upper center',
      bbox_to_anchor=(0.5, -0.18),
    )
  return image


def _name_classes(heat: Axes, names: Sequence[str]) -> None:
  """Names classes beside the rows, all of them where they have room."""
  if 1 < len(names) <= _NAMED_CLASSES:
    heat.set_yticks(
      range(len(names)), map(in_figure, names), fontsize=chosen_style().small
    )
    return
  heat.yaxis.set_major_formatter(  # Ticks reach beyond the rows.
    lambda at, _: in_figure(names[int(at)]) if 0 <= at < len(names) else ''
  )
