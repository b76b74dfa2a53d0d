"""The classes that the models of each cluster take for others."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fesem_jax.data.class_names import class_names
from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, chosen_style, fitting
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import color_of

_ACROSS = 4  # Clusters in a row.
_SHOWN = 8  # Clusters in the figure, those of the most test examples.
_WRITTEN = 12  # Classes whose shares are written into the matrix.
_NAMED = 30  # Classes with names beside the matrix.


def confusion_by_cluster(run: PlottedRun) -> Figure:
  """Draws how the deployed models of each cluster classify the test examples.

  Each row is the share of the examples of a true class that are taken for each class.
  Of more than eight clusters with test examples, those of the most are shown.

  Args:
    run: of a classification, finished, so that its workdir holds clients.npz.
  """
  counts = run.clients['confusion']
  size = counts.sum(axis=(1, 2))
  largest = np.argsort(-size, kind='stable')[:_SHOWN]
  shown = np.sort(largest[size[largest] > 0])
  names = class_names(str(run.dataset), counts.shape[1], run.clients.get('class_names'))
  clustered = len(run.clients['assignment']) > 0
  down = max(1, -(-len(shown) // fitting(_ACROSS, 3.2, 0.9)))
  across = max(1, -(-len(shown) // down))
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure, axes = plt.subplots(
      down,
      across,
      figsize=(0.9 + 3.2 * across, 0.5 + 3.2 * down),
      squeeze=False,
      layout='constrained',
    )
    image = None
    for place, axis in enumerate(axes.flat):
      if place >= len(shown):
        axis.axis('off')
        continue
      k = int(shown[place])
      image = _matrix(axis, counts[k])
      _name_classes(axis, names)
      right = counts[k].diagonal().sum() / size[k]
      who = f'cluster {k}' if clustered else 'all clients'
      axis.set_title(
        f'{who}: {100 * right:.1f} % of {size[k]:,} examples',
        fontsize=chosen_style().small,
        color=color_of(k) if clustered else 'black',
      )
      axis.set_xlabel('Predicted class' if place + across >= len(shown) else '')
      axis.set_ylabel('' if place % across else 'True class')
    if image is not None:
      figure.colorbar(
        image, ax=axes, label='Share of the true class (%)', fraction=0.03
      )
    left = int((size > 0).sum()) - len(shown)
    more = f', {left} smaller clusters not shown' if left else ''
    bad = ', bad clients too' * bool(run.of_honest)
    kind = 'validation' if run.on_validation else 'test'
    figure.suptitle(f'{in_figure(run.name)}: classes of {kind} examples{bad}{more}')
  return figure


def _matrix(axis: Axes, counts: np.ndarray) -> AxesImage:
  """Draws a matrix of counts [L, L] as shares of its rows in percent."""
  rows = counts.sum(axis=1, keepdims=True)
  shares = np.where(rows > 0, 100 * counts / np.maximum(rows, 1), np.nan)
  image = axis.imshow(shares, cmap='Blues', vmin=0, vmax=100, interpolation='nearest')
  if len(counts) <= _WRITTEN:
    for i, j in np.argwhere(counts > 0).tolist():
      color = 'white' if shares[i, j] > 60 else 'black'
      axis.text(
        j,
        i,
        f'{shares[i, j]:.0f}',
        ha='center',
        va='center',
        color=color,
        fontsize=chosen_style().small,
      )
  return image


def _name_classes(axis: Axes, names: Sequence[str]) -> None:
  """Names classes beside rows and columns, all of them where they have room."""
  for along in (axis.xaxis, axis.yaxis):
    along.set_major_locator(ticker.MaxNLocator(8, integer=True))
  if len(names) <= _NAMED:
    known = [in_figure(name, 12) for name in names]
    turned = 90 if max(map(len, known)) > 2 else 0
    axis.set_xticks(
      range(len(known)), known, fontsize=chosen_style().small, rotation=turned
    )
    axis.set_yticks(range(len(known)), known, fontsize=chosen_style().small)
