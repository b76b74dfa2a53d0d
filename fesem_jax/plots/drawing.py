"""All figures of a run, and of a comparison."""

import functools
import pathlib
from collections.abc import Sequence

from fesem_jax.data.class_names import class_names
from fesem_jax.evaluation.paired import Differences
from fesem_jax.plots.client_images import sheets
from fesem_jax.plots.client_map import map_of_clients
from fesem_jax.plots.clusters import clusters_over_rounds
from fesem_jax.plots.confusion import confusion_by_cluster
from fesem_jax.plots.curves import convergence
from fesem_jax.plots.objective import objective
from fesem_jax.plots.over_seeds import (
  Runs,
  client_distributions,
  curves_over_seeds,
  forest,
)
from fesem_jax.plots.partitions import DealtClients, compared_partitions
from fesem_jax.plots.runs import OVER, PlottedRun
from fesem_jax.plots.saving import save


def draw_run(
  run: PlottedRun,
  folder: pathlib.Path | None = None,
  formats: Sequence[str] = (),
) -> list[pathlib.Path]:
  """Draws every figure that a run has data for into a folder.

  Args:
    run: finished or not.
    folder: of the figures; default: `workdir/plots/`.
    formats: of the files, as for `save`.

  Returns:
    The paths of the files.

  Raises:
    UserError: if a file cannot be written.
  """
  folder = folder or run.workdir / 'plots'
  write = functools.partial(save, formats=formats)
  written = write(convergence([run]), folder / 'convergence')
  for over, (_, file) in OVER.items():
    if run.until(over):
      written += write(convergence([run], over), folder / file)
  if len(run.series('cluster_sizes')[0]):
    written += write(clusters_over_rounds(run), folder / 'clusters')
  if len(run.series('objective_local_step')[0]):
    written += write(objective(run), folder / 'objective')
  if len(run.clients.get('coordinates', ())) > 2:
    written += write(map_of_clients(run), folder / 'clients_pca')
  if 'label_counts' in run.clients and run.task.has_classes:
    counts, truth = run.clients['label_counts'], run.clients['truth']
    clusters, names = truth if len(truth) else None, run.clients.get('truth_names')
    dealt = DealtClients(counts, clusters, names)
    by_class = compared_partitions(
      {run.config.get('partition') or 'natural clients': dealt},
      f'{run.dataset}: classes of clients',
      class_names(str(run.dataset), counts.shape[1], run.clients.get('class_names')),
    )
    written += write(by_class, folder / 'classes')
  if 'confusion' in run.clients:
    written += write(confusion_by_cluster(run), folder / 'confusion')
  if 'sheet_images' in run.clients:
    written += write(sheets(run), folder / 'sheets')
  return written


def draw_comparison(
  runs: Runs,
  differences: Differences,
  folder: pathlib.Path,
  formats: Sequence[str] = (),
) -> list[pathlib.Path]:
  """Draws every figure of methods over seeds that there are data for.

  Args:
    runs: label of each method -> its finished runs, one for each seed.
    differences: `Comparison.differences`.
    folder: of the figures.
    formats: of the files, as for `save`.

  Returns:
    The paths of the files.

  Raises:
    UserError: if a file cannot be written.
  """
  written: list[pathlib.Path] = []
  write = functools.partial(save, formats=formats)
  first = [each[0] for each in runs.values()]
  if first:
    written += write(curves_over_seeds(runs), folder / 'convergence')
  for over, (_, file) in OVER.items():
    if any(run.until(over) for run in first):
      written += write(curves_over_seeds(runs, over), folder / file)
  if first:
    written += write(client_distributions(runs), folder / 'clients')
  if differences['deployed']:
    written += write(forest(differences), folder / 'differences')
  return written
