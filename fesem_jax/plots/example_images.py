"""Images of clients as a model sees them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, chosen_style
from fesem_jax.run.results.truth import true_clusters
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.errors import check

_CLIENTS, _EXAMPLES = 8, 10  # Rows and columns.


def are_images(shape: Sequence[int]) -> bool:
  """True if examples of a shape can be drawn: [H, W], or [H, W, C], C 1, 3 or 4."""
  return len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3, 4))


def example_images(data: Any, title: str, names: Sequence[str] | None = None) -> Figure:
  """Draws images of some clients, a row each, as models see them.

  Args:
    data: a `FederatedData` of images on the host; values are multiplied by its scale.
      Of more than 8 clients, 8 at even distances are shown, sorted by true cluster, and
      of each 10 examples.
    title: heading; the range of the values that are shown follows it.
    names: L names of the classes above the images; numbers from 0 if None.

  Raises:
    UserError: if examples are no images.
  """
  shape = data.example_shape
  check(are_images(shape), f'data: examples of shape {shape} are no images')
  info = data.info
  truth = true_clusters(info.clusters, info.cluster_names, in_figure)
  of_client = np.zeros(data.num_clients, int) if truth is None else truth.of_client
  order = np.argsort(of_client, kind='stable')
  shown = order[np.linspace(0, len(order) - 1, min(len(order), _CLIENTS)).astype(int)]
  held = [data.client(int(i)) for i in shown]
  rows = [
    np.linspace(0, len(y) - 1, min(len(y), _EXAMPLES)).astype(int) for _, y in held
  ]
  seen = [
    np.asarray(x[r], np.float32) * data.scale
    for (x, _), r in zip(held, rows, strict=True)
  ]
  least = min((float(x.min()) for x in seen if x.size), default=0.0)
  most = max((float(x.max()) for x in seen if x.size), default=1.0)
  low, high = (0.0, 1.0) if 0 <= least <= most <= 1 else (least, most)
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure, axes = plt.subplots(
      len(shown), _EXAMPLES, figsize=(9, 0.5 + 1.0 * len(shown)), squeeze=False,
      layout='constrained',
    )  # fmt: skip
    for line, client in enumerate(shown):
      name = in_figure(info.names[client], 20)
      if truth is not None:
        name += f'\n{in_figure(truth.names[of_client[client]], 20)}'
      for column, axis in enumerate(axes[line]):
        axis.set_xticks([])
        axis.set_yticks([])
        if column == 0:
          axis.set_ylabel(
            name, fontsize=chosen_style().small, rotation=0, ha='right', va='center'
          )
        if column >= len(rows[line]):
          axis.axis('off' if column else 'on')
          continue
        image = (seen[line][column] - low) / max(high - low, 1e-30)
        gray = image.ndim == 2 or image.shape[-1] == 1
        axis.imshow(
          image.reshape(image.shape[:2]) if gray else image,
          cmap='gray', vmin=0, vmax=1, interpolation='nearest',
        )  # fmt: skip
        label = held[line][1][rows[line][column]]
        if np.ndim(label) == 0:
          text = str(label) if names is None else names[int(label)]
          axis.set_title(in_figure(text, 12), fontsize=chosen_style().small, pad=1)
    figure.suptitle(
      f'{in_figure(title, 60)}: values from {least:.3g} (black) to {most:.3g}',
      fontsize=chosen_style().small,
    )
  return figure
