"""Losses and gradients of a cohort at fixed models."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import batching, client_map, sums, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.batch_losses import Batch
from fesem_jax.training.by_batches import batch_by_batch
from fesem_jax.training.trained import weights_by
from fesem_jax.utils.errors import check


def least_loss(
  local: LocalTraining, models: Params, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S] int32: each client's model of least training loss, of equal ones the first."""
  return cohort_losses(local, models, data, cohort).argmin(axis=1).astype(jnp.int32)


def start_by_loss(
  local: LocalTraining,
  centers: Params,
  personal: jax.Array,
  by_loss: jax.Array,
  data: FederatedData,
  cohort: Cohort,
) -> jax.Array:
  """[S] int32: the center of least loss of clients `by_loss`, `personal` of others."""

  def choose():
    return jnp.where(by_loss, least_loss(local, centers, data, cohort), personal)

  return jax.lax.cond(by_loss.any(), choose, lambda: personal)


def cohort_losses(
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort | None = None,
) -> jax.Array:
  """[S, K] float32 training loss F_i(w_k) of models [K, ...] on each client (IFCA).

  Forward passes run in float32. NaN counts as infinite; an empty slot gets 0. `cohort`
  are the S clients of a round; None stands for all M clients.
  """
  if cohort is None:
    padded = -(-data.num_clients // local.mesh.size) * local.mesh.size
    everyone = Cohort(jnp.arange(padded, dtype=jnp.int32), everyone=False)
    return cohort_losses(local, models, data, everyone)[: data.num_clients]

  return _mean_losses(local, models, data, cohort)


def personal_losses(
  local: LocalTraining, stack: Params, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S] float32: `cohort_losses` of each client's own model in a stack [S, ...]."""
  return _mean_losses(local, None, data, cohort, stack)[:, 0]


def _mean_losses(
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort,
  personal: Params = None,
) -> jax.Array:
  """[S, K] losses of models [K, ...], or [S, 1] of each client's own [S, ...]."""
  if models is not None:
    _check_whole(local)

  def batch_losses(models: Params, x: Any, y: Any, weights: jax.Array) -> jax.Array:
    def mean(model: Params) -> jax.Array:
      # Clients choose a model by it, whatever precision they train with.
      with jax.default_matmul_precision('highest'):
        return Batch(local.model, x, y, weights).loss(model)

    return jax.lax.map(mean, models) * weights.sum()

  shape = (1 if personal is not None else jax.tree.leaves(models)[0].shape[0],)
  losses = batch_by_batch(
    batch_losses, local, models, data, cohort, shape, client_models=personal
  )
  losses /= jnp.maximum(data.sizes(jnp.asarray(cohort.ids)), 1)[:, None]
  return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def _check_whole(local: LocalTraining) -> None:
  whole = local.batch_stats != 'local'
  check(whole, 'batch_stats: local is not defined for this method; use average')


def cohort_gradients(
  local: LocalTraining,
  model: Params,
  data: FederatedData,
  cohort: Cohort,
  counts: jax.Array,
  keep: bool = True,
  weighting: str = 'uniform',
) -> tuple[Params, sums.ClusterSums]:
  """Gradients [S, ...] of each client's training loss at one model, and their sum.

  Dropout and augmentation are off. The sum is over clients of `counts` [S] bool whose
  gradient is finite; others are 0. `model` is [1, ...]; `keep=False` returns the sum
  alone.
  """
  _check_whole(local)

  def body(shared, ids, counts, _, total):
    model, data = shared
    zero = tree.zeros_like(model)
    sizes = data.sizes(ids)

    def gradient(client, size):
      first = jnp.int32(0)
      rows, weights = batching.batch_places(first, size, data.max_examples)
      x, y = batching.gather(data, client, rows)

      batch = Batch(local.model, x, y, weights)
      with jax.default_matmul_precision(local.precision):
        return jax.grad(batch.loss)(tree.unstack(model, 0))

    gradients = client_map.side_by_side(gradient, sizes.shape[0])(ids, sizes)
    finite = tree.all_finite(gradients)
    gradients = tree.where(finite, gradients, tree.zeros_like(gradients))
    weights = (finite & counts & (sizes > 0)).astype(jnp.float32)
    weights *= weights_by(weighting, sizes, data.weights_of(ids))
    total = sums.add_to_one(total, gradients, weights, zero)
    return gradients if keep else None, total

  return client_map.map_clients(
    body,
    cohort.ids,
    data.sizes(cohort.ids),
    counts,
    (model, data),
    per_chunk=local.clients_per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
    sums=sums.no_sums(model),
  )
