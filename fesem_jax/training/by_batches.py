"""Outputs of fixed models on the examples of a cohort, batch by batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import batching, client_map, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params

# The most examples that a model classifies at a time outside of training.
EVALUATION_BATCH = 128


def evaluation_width(max_examples: int) -> int:
  """Examples of a batch outside of training; the largest client fills its last one."""
  batches = -(-max_examples // EVALUATION_BATCH)
  return -(-max_examples // batches)


def _add(step: jax.Array, total: jax.Array, new: jax.Array) -> jax.Array:
  return total + new


def batch_by_batch(
  evaluate: Callable[[Params, Any, Any, jax.Array], jax.Array],
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort,
  shape: tuple[int, ...],
  put: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] = _add,
  client_models: Params = None,
) -> jax.Array:
  """[S, *shape] float32 results of models on the examples of a cohort's S clients.

  `evaluate` is (models [K, ...], x [B, ...], y [B, ...], weights [B]) -> the result of
  a batch of one client; weights are 0 behind its last example. `put` is (batch number,
  results [C, *shape], new [C, ...]) -> results, from zeros; by default a sum. `models`
  are None where each client uses its own of `client_models` [S, ...].
  """
  width = evaluation_width(data.max_examples)

  def body(shared, ids, client_models, _, sums):
    models, data = shared
    sizes = data.sizes(ids)

    def batch_results(client, size, step, client_models):
      rows, weights = batching.batch_places(step, size, width)
      x, y = batching.gather(data, client, rows)
      used = models if client_models is None else tree.expand(client_models)
      return evaluate(used, x, y, weights)

    batched = client_map.side_by_side(batch_results, ids.shape[0])

    def add(step, results):
      steps = jnp.broadcast_to(step, sizes.shape)
      new = batched(ids, sizes, steps, client_models)
      return put(step, results, new)

    results = jnp.zeros((sizes.shape[0], *shape))
    batches = batching.batches_per_epoch(sizes, width)
    return jax.lax.fori_loop(0, batches.max(), add, results), sums

  work = batching.batches_per_epoch(data.sizes(cohort.ids), width)
  results, _ = client_map.map_clients(
    body,
    cohort.ids,
    work,
    client_models,
    (models, data),
    per_chunk=local.clients_per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
  )
  return results
