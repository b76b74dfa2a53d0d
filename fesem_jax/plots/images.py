"""Sheets of the images of typical clients."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fesem_jax.plots.clients import Portrait
from fesem_jax.plots.style import SMALL, in_figure


def typical_images(portrait: Portrait) -> pd.DataFrame:
  """Images of the most typical clients of each cluster, for `sheet`.

  `portrait` has the arrays of clients.npz, `Result.portrait`. Returns `cluster`,
  `client` and `image`; the client nearest to the mean of a cluster comes first.
  """
  images, clients = portrait['sheet_images'], portrait['sheet_clients']
  pictures = _pictures(images if images.ndim > 5 else images[..., None])
  exists = images.any(axis=tuple(range(3, images.ndim)))
  rows = [
    (k, portrait['names'][clients[k, i]], pictures[k, i, j])
    for k, i, j in np.argwhere(exists & (clients[..., None] >= 0)).tolist()
  ]
  return pd.DataFrame(rows, columns=['cluster', 'client', 'image'])


def _pictures(images: np.ndarray) -> np.ndarray:
  """Pictures in [0, 1] of images [..., H, W, C], in gray or color."""
  colored = images.shape[-1] in (3, 4)
  low, high = np.percentile(images, [0.5, 99.5])
  if colored and images.dtype == np.uint8:
    low, high = 0, 255
  pictures = ((images - low) / max(high - low, 1e-30)).clip(0, 1)
  return pictures if colored else pictures.mean(axis=-1)


def sheet(images: pd.DataFrame, ax: Axes) -> Axes:
  """Draws images, a row for each client.

  `images` have `client` and `image`: [H, W], or [H, W, 3 or 4], from 0 to 1.
  """
  rows = list(images.groupby('client', sort=False))
  across = max(len(group) for _, group in rows)
  height, width, *channels = images['image'].iloc[0].shape
  step = height + max(1, round(0.1 * height))
  canvas = np.ones((len(rows) * step, across * (width + 1), *channels))
  for i, (_, group) in enumerate(rows):
    for j, image in enumerate(group['image']):
      top, left = i * step, j * (width + 1)
      canvas[top : top + height, left : left + width] = image
  ax.imshow(canvas, cmap='gray', vmin=0, vmax=1, interpolation='nearest')
  ax.grid(visible=False)
  ax.set_xticks([])
  names = [in_figure(client, 20) for client, _ in rows]
  ax.set_yticks(np.arange(len(rows)) * step + height / 2, names, fontsize=SMALL)
  ax.tick_params(length=0)
  return ax
