"""Images of the clients of each cluster."""

import textwrap

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, chosen_style
from fesem_jax.run.results.pictures import laid_out
from fesem_jax.run.results.truth import mix
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import color_of


def sheets(run: PlottedRun) -> Figure:
  """Draws images of the most typical clients of each cluster (Fig. 5).

  Each line of images is of one client; the client nearest to the mean of its cluster
  is on top.

  Args:
    run: of image data, finished, so that its workdir holds clients.npz.
  """
  clients, truth = run.clients, run.truth()
  images, who = clients['sheet_images'], clients['sheet_clients']
  num_clusters, rows, columns = images.shape[:3]
  laid = laid_out(images)
  span = 2  # Clusters side by side.
  with plt.rc_context(STYLE | {'axes.grid': False}):
    across = min(span, num_clusters)
    down = -(-num_clusters // span)
    figure, axes = plt.subplots(
      down,
      across,
      figsize=(4.2 * across, 0.5 + 4.4 * rows / columns * down),
      squeeze=False,
      layout='constrained',
    )
    for k, axis in enumerate(axes.flat):
      axis.set_xticks([])
      axis.set_yticks([])
      if k >= num_clusters:
        axis.axis('off')
        continue
      axis.imshow(laid[k], cmap='gray', interpolation='nearest')
      known = who[k] >= 0
      names = [in_figure(clients['names'][i], 20) if i >= 0 else '' for i in who[k]]
      axis.set_yticks(
        (np.arange(rows) + 0.5) * laid.shape[1] / rows,
        names,
        fontsize=chosen_style().small,
      )
      axis.tick_params(length=0)
      for spine in axis.spines.values():
        spine.set(visible=True, color=color_of(k), linewidth=3)
      size = int((clients['assignment'] == k).sum())
      title = f'cluster {k}: {size} clients'
      if truth is not None and known.any():
        title += '\n' + textwrap.fill(mix(truth, clients['assignment'] == k), 55)
      axis.set_title(title, fontsize=chosen_style().small, color=color_of(k))
    figure.suptitle(f'{in_figure(run.name)}: the most typical clients of each cluster')
  return figure
