"""Drawing of each device's clients alike, where data are split by client."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort


def places_for(count: int, num_clients: int, padded: int, num_devices: int) -> int:
  """The most clients of a device in a cohort of `count`; `padded` is M with padding."""
  on_each = min(padded // num_devices, num_clients)
  return min(on_each, -(-count * on_each // num_clients))


def evenly(
  count: Any, draw: Any, exists: Any, start: Any, num_devices: int, places: int
) -> Any:
  """[D * places] positions of `count` clients, of each device alike; M is empty."""
  # Systematic sampling: each of `sharding.num_shards` runs of clients, and so each
  # device, gives its part of the cohort, rounded by a common random `start`: those
  # that exist with the least `draw` [M]. Arrays are all NumPy or all JAX.
  num_clients, shards = len(draw), sharding.num_shards(num_devices)
  available = exists.reshape(shards, -1)
  sizes = available.sum(axis=1)
  end = sizes.cumsum()
  whole = end[-1]
  before, after = (_part(count, n, whole, start) for n in (end - sizes, end))
  missing_last = draw.reshape(shards, -1) + 2.0 * ~available
  rank = missing_last.argsort(axis=1).argsort(axis=1)
  is_drawn = (rank < (after - before)[:, None]) & available
  left_out = ~is_drawn.reshape(num_devices, -1)
  on_each = left_out.shape[1]
  columns = np.arange(on_each, dtype=np.int32)[None]
  order = (left_out * on_each + columns).argsort(axis=1)[:, :places]
  ids = order + np.arange(num_devices, dtype=np.int32)[:, None] * on_each
  filled = columns[:, :places] < (on_each - left_out.sum(axis=1))[:, None]
  return (ids * filled + num_clients * ~filled).reshape(-1)


def _part(count: Any, part: Any, whole: Any, start: Any) -> Any:
  """Rounds (count * part + start) / whole down; the product may exceed 32 bits."""
  quotient = remainder = 0 * part
  bits = count.bit_length() if isinstance(count, int) else 31
  whole = whole + (whole == 0)
  for bit in reversed(range(bits)):
    remainder = 2 * remainder + (count >> bit & 1) * part
    quotient = 2 * quotient + remainder // whole
    remainder = remainder % whole
  return quotient + (remainder + start >= whole)


def drawn_on_host(
  rng: np.random.Generator, count: int, data: FederatedData, mesh: Mesh
) -> np.ndarray:
  """[S] int32 positions of `count` clients, with empty places, drawn by client id."""
  real, count = len(data.info.names), min(count, len(data.info.names))
  draw = np.ones(data.num_clients)
  draw[np.argsort(np.asarray(data.client_ids)[:real])] = rng.random(real)
  exists, start = np.arange(data.num_clients) < real, int(rng.integers(real))
  places = places_for(count, real, data.num_clients, mesh.size)
  return evenly(count, draw, exists, start, mesh.size, places).astype(np.int32)


def drawn_on_devices(
  key: jax.Array,
  count: int | jax.Array,
  draw: jax.Array,
  exists: jax.Array,
  places: int,
  mesh: Mesh,
) -> jax.Array:
  """[D * places] int32 positions of `count` clients, drawn within a program."""
  start_key = prng_streams.fold(key, prng_streams.ROUNDING)
  start = jax.random.randint(start_key, (), 0, jnp.maximum(exists.sum(), 1))
  ids = evenly(count, draw, exists, start, mesh.size, places)
  return ids.astype(jnp.int32)


def on_their_devices(ids: jax.Array, num_clients: int, mesh: Mesh) -> jax.Array:
  """[D * places] int32 positions `ids` [S], each among those of its own device."""
  in_cohort = jnp.zeros(num_clients, bool).at[ids].set(True, mode='drop')
  in_cohort = in_cohort.reshape(mesh.size, -1)
  on_each = in_cohort.shape[1]
  order = jnp.argsort(~in_cohort, axis=1)[:, : min(len(ids), on_each)]
  filled = jnp.take_along_axis(in_cohort, order, axis=1)
  positions = order + jnp.arange(mesh.size)[:, None] * on_each
  return jnp.where(filled, positions, num_clients).reshape(-1).astype(jnp.int32)


def places_of_sample(
  count: int, data: FederatedData, of: Cohort | None, mesh: Mesh
) -> int:
  """The most clients of a device among `count` drawn of a cohort; None is everyone."""
  real = len(data.info.names)
  if of is None or of.everyone:
    return places_for(min(count, real), real, data.num_clients, mesh.size)
  most = of.ids.shape[0] // mesh.size
  # So many places were needed by no fewer clients than this.
  on_each = min(data.num_clients // mesh.size, real)
  at_least = (most - 1) * real // on_each + 1
  return min(most, -(-count * most // at_least))
