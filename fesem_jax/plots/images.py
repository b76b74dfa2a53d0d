"""Sheets of images: those of typical clients, and examples as models see them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fesem_jax.plots.clients import Portrait
from fesem_jax.plots.style import small
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.errors import check

_CLIENTS, _EXAMPLES = 8, 10  # Rows and columns.


def are_images(shape: Sequence[int]) -> bool:
  """True if examples can be drawn: [H, W], or [H, W, C], C 1, 3 or 4."""
  return len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3, 4))


def typical_images(portrait: Portrait) -> pd.DataFrame:
  """Images of the most typical clients of each cluster, for `sheet`.

  `portrait` has the arrays of clients.npz, `Result.portrait`. Returns `cluster`,
  `client` and `image`; the client nearest to the mean of a cluster comes first.
  """
  images, clients = portrait['sheet_images'], portrait['sheet_clients']
  pictures = _pictures(images if images.ndim > 5 else images[..., None])
  there = images.any(axis=tuple(range(3, images.ndim)))
  rows = [
    (k, portrait['names'][clients[k, i]], pictures[k, i, j])
    for k, i, j in np.argwhere(there & (clients[..., None] >= 0)).tolist()
  ]
  return pd.DataFrame(rows, columns=['cluster', 'client', 'image'])


def example_images(data: Any, names: Sequence[str] | None = None) -> pd.DataFrame:
  """Images of some clients of a data set as models see them, for `sheet`.

  `data` is a `FederatedData` on the host, `names` are those of its L classes. Of more
  than 8 clients, 8 at even distances are chosen, by true cluster, and of each 10
  examples. Returns `client`, `label` and `image`; `UserError` if these are no images.
  """
  check(are_images(data.example_shape), 'data: examples are no images')
  truth = data.info.clusters
  truth = np.zeros(data.num_clients) if truth is None else np.asarray(truth)
  order = np.argsort(truth, kind='stable')
  rows = []
  for i in order[np.linspace(0, len(order) - 1, min(len(order), _CLIENTS)).astype(int)]:
    x, y = data.client(int(i))
    for j in np.linspace(0, len(y) - 1, min(len(y), _EXAMPLES)).astype(int):
      label = '' if np.ndim(y[j]) else str(y[j]) if names is None else names[int(y[j])]
      rows.append((data.info.names[i], label, data.scale * x[j].astype(np.float32)))
  frame = pd.DataFrame(rows, columns=['client', 'label', 'image'])
  images = np.stack(frame['image'])
  pictures = _pictures(images if images.ndim > 3 else images[..., None])
  return frame.assign(image=list(pictures))


def _pictures(images: np.ndarray) -> np.ndarray:
  """Pictures in [0, 1] of images [..., H, W, C], in gray or color."""
  colored = images.shape[-1] in (3, 4)
  low, high = np.percentile(images, [0.5, 99.5])
  if colored and images.dtype == np.uint8:
    low, high = 0, 255
  pictures = ((images - low) / max(high - low, 1e-30)).clip(0, 1)
  return pictures if colored else pictures.mean(axis=-1)


def sheet(images: pd.DataFrame, ax: Axes) -> Axes:
  """Draws images, a row for each client, with their labels above.

  `images` have `client`, `image` ([H, W], or [H, W, 3 or 4], from 0 to 1), and `label`
  where there are any.
  """
  rows = list(images.groupby('client', sort=False))
  across = max(len(group) for _, group in rows)
  height, width, *channels = images['image'].iloc[0].shape
  labeled = 'label' in images and (images['label'] != '').any()
  above = max(1, round(0.35 * height if labeled else 0.1 * height))
  step = above + height
  canvas = np.ones((len(rows) * step, across * (width + 1), *channels))
  for i, (_, group) in enumerate(rows):
    for j, image in enumerate(group['image']):
      top, left = i * step + above, j * (width + 1)
      canvas[top : top + height, left : left + width] = image
      if labeled:
        label = in_figure(group['label'].iloc[j], 12)
        place: dict[str, Any] = {'ha': 'center', 'va': 'bottom', 'fontsize': small()}
        ax.text(left + width / 2, top - 0.5, label, **place)
  ax.imshow(canvas, cmap='gray', vmin=0, vmax=1, interpolation='nearest')
  ax.grid(visible=False)
  ax.set_xticks([])
  names = [in_figure(client, 20) for client, _ in rows]
  middle = (np.arange(len(rows)) + 0.5) * step + above / 2
  ax.set_yticks(middle, names, fontsize=small())
  ax.tick_params(length=0)
  return ax
