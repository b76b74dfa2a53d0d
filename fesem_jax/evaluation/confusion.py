"""Confusion matrices of the clients of each cluster."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import client_map
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.evaluation.evaluate import measure_chunk
from fesem_jax.models.mixture import as_one_model
from fesem_jax.tasks import Task

# Classes, and numbers of all matrices, of which there still are matrices.
_MOST_CLASSES, _MOST = 100, 2**20


def num_matrices(used: ClientModels, task: Task, num_classes: int) -> int:
  """K, the matrices that `confusion` makes: 1 without clusters, 0 if it makes none.

  That is where the task has no such matrix, or there are more than 100 classes or too
  many clusters. Of `used`, shapes are enough.
  """
  count = used.num_clusters() if used.has_clusters() else 1
  few = num_classes <= _MOST_CLASSES and count * num_classes**2 <= _MOST
  return count if few and task.confusion is not None else 0


def confusion(
  used: ClientModels, local: LocalTraining, test: FederatedData
) -> jax.Array:
  """Counts how clients' deployed models classify the test examples of each class.

  Args:
    used: the models that the M clients deploy, of K = `num_matrices` clusters.
    local: how clients train; its task says what is counted.
    test: split to measure on, of the same clients.

  Returns:
    [K, L, L] int32, examples of each true class (rows) that were taken for each class
    (columns), of the clients of each cluster.
  """
  clusters, classes = used.clusters(), test.num_classes
  count = num_matrices(used, local.model.task, classes)
  model, used, _ = as_one_model(local.model, used)
  tally = model.task.confusion
  assert tally is not None
  task = model.task._replace(measure=tally, add=jnp.add)
  model = model._replace(task=task, metrics=())
  ids = jnp.arange(test.num_clients, dtype=jnp.int32)
  groups = jnp.zeros_like(ids) if clusters is None else clusters
  own = used._replace(shared=None, membership=None), groups

  def body(
    shared: Any, ids: jax.Array, own: Any, _: Any, sums: jax.Array
  ) -> tuple[None, jax.Array]:
    (own, groups), (models, test) = own, shared
    params = own._replace(shared=models).params(ids.shape[0])
    totals = measure_chunk(model, params, test, ids)
    return None, sums.at[groups].add(totals.sums.astype(sums.dtype))

  return client_map.map_clients(
    body,
    ids,
    test.sizes(ids),
    own,
    (used.shared, test),
    per_chunk=local.clients_per_chunk,
    empty=test.num_clients,
    mesh=local.mesh,
    sums=jnp.zeros((count, classes, classes), jnp.int32),
  )[1]
