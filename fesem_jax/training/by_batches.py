"""Outputs of fixed models on the examples of a cohort, batch by batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import batching, client_map, tree
from fesem_jax.core.chunk_order import ChunkSize
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params

# The most examples that a model classifies at a time outside of training.
EVALUATION_BATCH = 128


def evaluation_width(max_examples: int) -> int:
  """Examples of a batch outside of training; the largest client fills its last one."""
  batches = -(-max_examples // EVALUATION_BATCH)
  return -(-max_examples // batches)


def _add(step: jax.Array, total: jax.Array, found: jax.Array) -> jax.Array:
  return total + found


def _mean(total: jax.Array, sizes: jax.Array) -> jax.Array:
  return total / jnp.maximum(sizes, 1)[:, None]


class OfBatches(NamedTuple):
  """What is computed of the examples of a client."""

  shape: tuple[int, ...]  # of a client's result, which begins with zeros
  # (models [K, ...], x [B, ...], y [B, ...], weights [B]) -> what is found of a batch
  # of one client. Weights are 0 behind its last example.
  of_batch: Callable[[Params, Any, Any, jax.Array], jax.Array]
  # (number of the batch, results [C, ...], what was found [C, ...]) -> results; by
  # default their sum.
  put: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] = _add
  # (results [C, ...], sizes [C]) -> results after the last batch; by default [C, K]
  # divided by the sizes.
  finish: Callable[[jax.Array, jax.Array], jax.Array] = _mean


def batch_by_batch(
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort,
  of_batches: OfBatches,
  own: Params = None,
) -> jax.Array:
  """[S, ...] what models make of the examples of a cohort's S clients.

  All clients use `models` [K, ...]; where it is None, each uses its `own` [S, ...].
  """
  width = evaluation_width(data.max_examples)
  in_order = jnp.arange(data.max_examples, dtype=jnp.int32)

  def body(chunk, shared, _):
    models, data = shared
    sizes = data.sizes(chunk.ids)

    def batch_results(client, size, step, own):
      rows, weights = batching.batch_rows(in_order, step, size, width)
      x, y = batching.gather(data, client, rows)
      used = models if own is None else tree.expand(own)
      return of_batches.of_batch(used, x, y, weights)

    each = client_map.map_one_or_many(batch_results, chunk.ids.shape[0])

    def add(step, found):
      steps = jnp.broadcast_to(step, sizes.shape)
      new = each(chunk.ids, sizes, steps, chunk.own)
      return of_batches.put(step, found, new)

    found = jnp.zeros((sizes.shape[0], *of_batches.shape))
    batches = batching.batches_per_epoch(sizes, width)
    found = jax.lax.fori_loop(0, batches.max(), add, found)
    return of_batches.finish(found, sizes), None

  work = batching.batches_per_epoch(data.sizes(cohort.ids), width)
  found, _ = client_map.map_clients(
    body,
    client_map.Clients(cohort.ids, work, own),
    (models, data),
    ChunkSize(local.clients_per_chunk),
    empty=data.num_clients,
    mesh=local.mesh,
  )
  return found
