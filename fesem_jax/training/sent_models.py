"""The models that clients send; bad clients falsify theirs."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Params


def as_sent(
  data: FederatedData,
  ids: jax.Array,
  starts: ClientModels,
  trained: Params,
  keys: jax.Array,
  layers: Sequence[str] | None = None,
) -> Params:
  """The models that clients send back, those of bad ones in place of the trained.

  Only layers that the server had sent are sent back, the shared ones of the starts, and
  of these only such that learn, those in `layers`; None is all.

  The clients are at positions `ids` [C] int32 of the data, and `keys` [C] are theirs in
  this round. The models `trained` [C, ...] and those returned are finite.
  """
  corruption: Any = data.corruption
  if corruption is None or not corruption.of_models or starts.shared is None:
    return trained
  received, changed = starts._replace(own=None).params(ids.shape[0]), trained
  some_layers = starts.own is not None or layers is not None
  if some_layers:
    received = {
      n: layer
      for n, layer in received.items()
      if layer is not None and (layers is None or n in layers)
    }
    changed = {n: trained[n] for n in received}
  if not jax.tree.leaves(received):
    return trained
  bad = jnp.asarray(corruption.bad).at[ids].get(mode='fill', fill_value=False)
  change = jax.tree.map(jnp.subtract, changed, received)
  if corruption.kind == 'sign_flip':
    lie = jax.tree.map(jnp.subtract, received, change)
  else:
    lie = jax.tree.map(jnp.add, received, _noise(change, keys))
  # A lie beyond float32 would stop the run as a client that failed does not.
  changed = tree.where(bad & tree.all_finite(lie), lie, changed)
  return trained | changed if some_layers else changed


def _noise(change: Params, keys: jax.Array) -> Params:
  """[C, ...] random directions, in expectation of each change's squared length."""
  leaves, structure = jax.tree.flatten(change)
  size = sum(x[0].size for x in leaves)
  squares = tree.row_distances(change, tree.zeros_like(change))
  scale = jnp.sqrt(squares) / math.sqrt(size)

  def draw(key: jax.Array, scale: jax.Array) -> list[jax.Array]:
    own = jax.random.split(prng_streams.fold(key, prng_streams.NOISE), len(leaves))
    shapes = [x.shape[1:] for x in leaves]
    return [
      scale * jax.random.normal(k, shape) for k, shape in zip(own, shapes, strict=True)
    ]

  return jax.tree.unflatten(structure, jax.vmap(draw)(keys, scale))
