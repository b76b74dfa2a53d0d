"""Images of the clients of each cluster."""

import textwrap

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, color_of
from fesem_jax.plots.truth import TrueClusters
from fesem_jax.utils.display import in_figure


def sheets(run: PlottedRun) -> Figure:
  """Draws images of the most typical clients of each cluster (Fig. 5).

  Each line of images is of one client; the client nearest to the mean of its cluster
  is on top.

  Args:
    run: of image data, finished, so that its workdir holds clients.npz.
  """
  clients, truth = run.clients, run.truth()
  images, who = clients['sheet_images'], clients['sheet_clients']
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
  span = 2  # Clusters side by side.
  with plt.rc_context(STYLE | {'axes.grid': False}):
    across = min(span, num_clusters)
    down = -(-num_clusters // span)
    figure, axes = plt.subplots(
      down,
      across,
      figsize=(5.2 * across, 0.5 + 5.2 * rows / columns * down),
      squeeze=False,
      layout='constrained',
    )
    for k, axis in enumerate(axes.flat):
      axis.set_xticks([])
      axis.set_yticks([])
      if k >= num_clusters:
        axis.axis('off')
        continue
      gap = max(1, height // 10)
      tiles = np.pad(
        shown[k],
        [(0, 0), (0, 0), (gap, gap), (1, 1)] + [(0, 0)] * (shown[k].ndim - 4),
        constant_values=paper,
      )
      order = (0, 2, 1, 3, *range(4, tiles.ndim))
      sheet = tiles.transpose(order).reshape(
        rows * tiles.shape[2], columns * tiles.shape[3], *tiles.shape[4:]
      )
      axis.imshow(sheet, cmap='gray', interpolation='nearest')
      known = who[k] >= 0
      names = [in_figure(clients['names'][i], 20) if i >= 0 else '' for i in who[k]]
      axis.set_yticks((np.arange(rows) + 0.5) * tiles.shape[2], names, fontsize=7)
      axis.tick_params(length=0)
      for spine in axis.spines.values():
        spine.set(visible=True, color=color_of(k), linewidth=3)
      size = int((clients['assignment'] == k).sum())
      title = f'cluster {k}: {size} clients'
      if truth is not None and known.any():
        title += '\n' + textwrap.fill(_mix(truth, clients['assignment'] == k), 75)
      axis.set_title(title, fontsize=9, color=color_of(k))
    figure.suptitle(f'{in_figure(run.name)}: the most typical clients of each cluster')
  return figure


def as_pictures(images: np.ndarray, there: np.ndarray) -> np.ndarray:
  """What Matplotlib shows of images [..., C]: [...] in gray, or [..., 3] in color.

  `there` [...] says which of them are images.
  """
  if images.shape[-1] != 3:  # Of other channels, their mean.
    return images[..., 0] if images.shape[-1] == 1 else images.mean(axis=-1)
  if images.dtype == np.uint8:
    return images
  # Matplotlib takes colors between 0 and 1; features may have any range, and noise.
  least, most = np.percentile(images[there], [1, 99]) if there.any() else (0, 1)
  bounded = (images - least) / max(most - least, np.finfo(np.float32).tiny)
  return bounded.clip(0, 1)


def _mix(truth: TrueClusters, members: np.ndarray) -> str:
  """How many members ([M] bool) are of which true cluster; the largest three."""
  counts = np.bincount(truth.of_client[members], minlength=len(truth.names))
  order = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
  parts = [f'{counts[i]} of {truth.names[i]}' for i in order[:3]]
  if others := order[3:].tolist():
    parts.append(f'{counts[others].sum()} of {len(others)} others')
  return ', '.join(parts)
