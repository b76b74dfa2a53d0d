"""Images of clients as pictures: gray or in color, laid out in sheets."""

import numpy as np


def as_pictures(images: np.ndarray, there: np.ndarray) -> np.ndarray:
  """Pictures of images [..., C] for figures: [...] in gray, or [..., 3] in color.

  `there` [...] says which of them are images.
  """
  if images.shape[-1] != 3:  # Of other channels, their mean.
    return images[..., 0] if images.shape[-1] == 1 else images.mean(axis=-1)
  if images.dtype == np.uint8:
    return images
  # Colors lie between 0 and 1; features may have any range, and noise.
  least, most = np.percentile(images[there], [1, 99]) if there.any() else (0, 1)
  bounded = (images - least) / max(most - least, np.finfo(np.float32).tiny)
  return bounded.clip(0, 1)


def laid_out(images: np.ndarray) -> np.ndarray:
  """The sheets of clusters, the images of each client side by side.

  `images` [K, R, I, H, W] or [K, R, I, H, W, C] are I images of R clients of each
  cluster; those that are missing are zero. Returns [K, R * (H + 2 * gap), I * (W + 2)]
  in gray, or the same with 3 colors, where gap is a tenth of H, at least 1.
  """
  if images.ndim == 5:
    images = images[..., None]
  num_clusters, rows, columns, height = images.shape[:4]
  there = np.asarray(images.any(axis=(3, 4, 5)))
  shown = as_pictures(images, there)
  # Gaps and missing images look like paper: white, or as dark as the images are.
  white = 255 if shown.dtype == np.uint8 else 1
  paper = white if shown.ndim > 5 else np.median(shown[there]).astype(shown.dtype)
  shown = shown.copy()
  shown[~there] = paper
  gap = max(1, height // 10)
  tiles = np.pad(
    shown,
    [(0, 0), (0, 0), (0, 0), (gap, gap), (1, 1)] + [(0, 0)] * (shown.ndim - 5),
    constant_values=paper,
  )
  order = (0, 1, 3, 2, 4, *range(5, tiles.ndim))
  return tiles.transpose(order).reshape(
    num_clusters, rows * tiles.shape[3], columns * tiles.shape[4], *tiles.shape[5:]
  )
