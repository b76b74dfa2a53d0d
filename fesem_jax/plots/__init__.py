"""Figures of finished or running experiments, drawn from their workdirs."""

from fesem_jax.plots.client_images import sheets
from fesem_jax.plots.client_map import map_of_clients
from fesem_jax.plots.clusters import clusters_over_rounds
from fesem_jax.plots.confusion import confusion_by_cluster
from fesem_jax.plots.curves import convergence
from fesem_jax.plots.drawing import draw_comparison, draw_run
from fesem_jax.plots.example_images import example_images
from fesem_jax.plots.objective import objective
from fesem_jax.plots.over_seeds import (
  client_distributions,
  curves_over_seeds,
  forest,
)
from fesem_jax.plots.partitions import DealtClients, compared_partitions
from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.saving import save
from fesem_jax.plots.style import use_style
from fesem_jax.plots.sweep import by_value
from fesem_jax.run.results.metrics_file import method_label
from fesem_jax.utils.palette import PALETTE

__all__ = [
  'PALETTE',
  'DealtClients',
  'PlottedRun',
  'by_value',
  'client_distributions',
  'clusters_over_rounds',
  'compared_partitions',
  'confusion_by_cluster',
  'convergence',
  'curves_over_seeds',
  'draw_comparison',
  'draw_run',
  'example_images',
  'forest',
  'map_of_clients',
  'method_label',
  'objective',
  'save',
  'sheets',
  'use_style',
]
