"""Figures of runs: functions of a pandas frame and Matplotlib's axes."""

from fesem_jax.plots.clients import class_counts, client_map, client_points, partition
from fesem_jax.plots.figures import draw_comparison, draw_run, partitions, sweep_figure
from fesem_jax.plots.images import sheet, typical_images
from fesem_jax.plots.lines import average, cluster_sizes, curves, differences, sweep
from fesem_jax.plots.style import PALETTE, save

__all__ = [
  'PALETTE',
  'average',
  'class_counts',
  'client_map',
  'client_points',
  'cluster_sizes',
  'curves',
  'differences',
  'draw_comparison',
  'draw_run',
  'partition',
  'partitions',
  'save',
  'sheet',
  'sweep',
  'sweep_figure',
  'typical_images',
]
