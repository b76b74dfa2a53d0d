"""Losses of single examples at fixed models."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import batching, client_map, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.batch_losses import losses_of
from fesem_jax.training.by_batches import batch_by_batch, evaluation_width


def example_losses(
  local: LocalTraining, models: Params, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S, K, N_max] float32 losses of models [K, ...]; infinite in place of NaN."""
  num_models = jax.tree.leaves(models)[0].shape[0]
  width = evaluation_width(data.max_examples)

  def batch_losses(models: Params, x: Any, y: Any, weights: jax.Array) -> jax.Array:
    return jnp.where(weights > 0, _losses_by_model(local, models, x, y), 0.0)

  def put(step: jax.Array, whole: jax.Array, losses: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, losses, step * width, 2)

  shape = (num_models, -(-data.max_examples // width) * width)
  losses = batch_by_batch(batch_losses, local, models, data, cohort, shape, put)
  losses = losses[:, :, : data.max_examples]
  return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def shares_of_least_loss(
  local: LocalTraining, models: Params, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S, K] float32: share of a client's examples on which a model is the best."""
  num_models = jax.tree.leaves(models)[0].shape[0]

  def batch_losses(models: Params, x: Any, y: Any, weights: jax.Array) -> jax.Array:
    losses = _losses_by_model(local, models, x, y)
    best = jnp.where(jnp.isnan(losses), jnp.inf, losses).argmin(axis=0)
    return (jax.nn.one_hot(best, num_models) * weights[:, None]).sum(axis=0)

  shares = batch_by_batch(batch_losses, local, models, data, cohort, (num_models,))
  return shares / jnp.maximum(data.sizes(jnp.asarray(cohort.ids)), 1)[:, None]


def example_targets(
  local: LocalTraining, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S, N_max, ...] y of the cohort's examples, 0 behind each client's last one."""

  def body(data, ids, rows, _, sums):
    def client_targets(client, size):
      rows, weights = batching.batch_places(jnp.int32(0), size, data.max_examples)
      _, y = batching.gather(data, client, rows)
      return tree.where(weights > 0, y, jnp.zeros_like(y))

    chunk_targets = client_map.side_by_side(client_targets, ids.shape[0])
    return chunk_targets(ids, data.sizes(ids)), sums

  targets, _ = client_map.map_clients(
    body,
    cohort.ids,
    data.sizes(jnp.asarray(cohort.ids)),
    None,
    data,
    per_chunk=local.clients_per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
  )
  return targets


def _losses_by_model(
  local: LocalTraining, models: Params, x: jax.Array, y: jax.Array
) -> jax.Array:
  """[K, B] losses of a batch at each of K models, as precise as clients choose by."""

  def model_losses(model: Params) -> jax.Array:
    with jax.default_matmul_precision('highest'):
      return losses_of(local.model, model, x, y)

  return jax.lax.map(model_losses, models)
