"""All figures of a run."""

import pathlib

from fesem_jax.data.class_names import class_names
from fesem_jax.data.label_skew import label_skew as skew
from fesem_jax.plots.client_images import sheets
from fesem_jax.plots.client_map import map_of_clients
from fesem_jax.plots.cluster_flows import drawn_flows, flows_of
from fesem_jax.plots.clusters import clusters_over_rounds
from fesem_jax.plots.confusion import confusion_by_cluster
from fesem_jax.plots.curves import (
  by_epsilon,
  by_gigabytes,
  by_seconds,
  convergence,
  is_timed,
  sends,
  spends,
)
from fesem_jax.plots.federation import classes_of_clients
from fesem_jax.plots.objective import objective
from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.saving import save


def draw_run(run: PlottedRun) -> list[pathlib.Path]:
  """Draws every figure that a run has data for into `workdir/plots/`.

  Args:
    run: finished or not.

  Returns:
    The paths of the files.

  Raises:
    UserError: if a file cannot be written.
  """
  folder = run.workdir / 'plots'
  written = save(convergence([run]), folder / 'convergence')
  if sends(run):
    written += save(by_gigabytes([run]), folder / 'by_gigabytes')
  if is_timed(run):
    written += save(by_seconds([run]), folder / 'by_seconds')
  if spends(run):
    written += save(by_epsilon([run]), folder / 'by_epsilon')
  if len(run.series('cluster_sizes')[0]):
    written += save(clusters_over_rounds(run), folder / 'clusters')
  if (flows := flows_of(run)) is not None:
    written += save(drawn_flows(run, *flows), folder / 'flows')
  if len(run.series('objective_local_step')[0]):
    written += save(objective(run), folder / 'objective')
  if len(run.clients.get('coordinates', ())) > 2:
    written += save(map_of_clients(run, 'pca'), folder / 'clients_pca')
    written += save(map_of_clients(run, 't-sne'), folder / 'clients_tsne')
  if 'label_counts' in run.clients and run.task.has_classes:
    counts, truth = run.clients['label_counts'], run.clients['truth']
    names = run.clients.get('truth_names')
    by_class = classes_of_clients(
      counts,
      f'{run.dataset}: classes of clients, label skew {skew(counts):.2f}',
      truth if len(truth) else None,
      names,
      class_names(str(run.dataset), counts.shape[1], run.clients.get('class_names')),
    )
    written += save(by_class, folder / 'classes')
  if 'confusion' in run.clients:
    written += save(confusion_by_cluster(run), folder / 'confusion')
  if 'sheet_images' in run.clients:
    written += save(sheets(run), folder / 'sheets')
  return written
