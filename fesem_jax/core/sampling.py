"""Random draws for the clients of a round, on the device: keys, coins and cohorts."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import prng_streams, stratified
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.sharding import divisor
from fesem_jax.core.types import Cohort, HostOrDeviceArray
from fesem_jax.utils.errors import check


def everyone(data: FederatedData, round: HostOrDeviceArray = None) -> Cohort:
  """The cohort of all clients; for `round`, see `cohort_of`."""
  return Cohort(jnp.arange(data.num_clients), everyone=True, round=round)


def cohort_of(
  client_ids: HostOrDeviceArray,
  data: FederatedData,
  mesh: Mesh,
  round: HostOrDeviceArray = None,
) -> Cohort:
  """The cohort of chosen clients, filled up to a multiple of the devices of `mesh`.

  `client_ids` are [S] distinct `FederatedData.client_ids`; other numbers become empty
  slots. `round` is for `lr_schedule`. `UserError` on a repeated client on the host.
  """
  if isinstance(client_ids, list | tuple | np.ndarray):
    distinct, counts = np.unique(np.asarray(client_ids), return_counts=True)
    twice = distinct[(counts > 1) & (distinct >= 0)]
    check(not len(twice), f'client_ids: has client {twice[:1]} twice')
  ids = data.positions(client_ids)
  if data.shard_rows is not None:
    ids = stratified.on_their_devices(ids, data.num_clients, mesh)
  padding = jnp.full(-ids.shape[0] % divisor(mesh), data.num_clients, jnp.int32)
  return Cohort(jnp.concatenate([ids, padding]), everyone=False, round=round)


def coin(
  key: jax.Array, data: FederatedData, ids: jax.Array, probability: float, stream: int
) -> jax.Array:
  """[S] bool: one toss for each client of a round, true with `probability`."""
  if probability == 0:
    return jnp.zeros(ids.shape, bool)
  keys = data.keys_of(key, ids)

  def toss(k):
    return jax.random.bernoulli(prng_streams.fold(k, stream), variable(probability))

  return jax.vmap(toss)(keys)


def sample_clients(
  key: jax.Array,
  data: FederatedData,
  count: int,
  mesh: Mesh,
  of: Cohort | None = None,
  number: jax.Array | None = None,
) -> Cohort:
  """A random cohort of `count` clients, filled up to a multiple of the devices.

  Clients are drawn by client id from `of` (None: everyone), clients without examples
  last. `number` [] int32 draws fewer than `count`.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(data.client_ids))
  exists = data.sizes() > 0
  if of is not None and not of.everyone:
    exists &= jnp.zeros(exists.shape, bool).at[of.ids].set(True, mode='drop')
  if data.shard_rows is not None:
    places = stratified.places_of_sample(count, data, of, mesh)
    draw = jax.vmap(jax.random.uniform)(keys)
    drawn = count if number is None else number
    ids = stratified.drawn_on_devices(key, drawn, draw, exists, places, mesh)
    return Cohort(ids, everyone=False)
  ids = first_at_random(keys, exists, count)
  padding = jnp.full(-ids.shape[0] % divisor(mesh), data.num_clients, jnp.int32)
  ids = jnp.concatenate([ids, padding])
  if number is not None:
    ids = jnp.where(jnp.arange(ids.shape[0]) < number, ids, data.num_clients)
  return Cohort(ids, everyone=False)


def all_or_sample(
  key: jax.Array, data: FederatedData, count: int, mesh: Mesh
) -> Cohort:
  """Everyone, or `count` random clients if there are more and it is not 0."""
  if not 0 < count < data.num_clients:
    return everyone(data)
  key = prng_streams.fold(key, prng_streams.SAMPLE)
  return sample_clients(key, data, count, mesh)


def first_at_random(keys: jax.Array, exists: jax.Array, count: int) -> jax.Array:
  """[min(count, S)] int32 positions in a random order, of clients that exist first."""
  draw = jnp.where(exists, jax.vmap(jax.random.uniform)(keys), 2.0)
  # A sort of all would be the same, but for a million clients TPUs compile it slowly.
  return jax.lax.top_k(-draw, min(count, draw.shape[0]))[1].astype(jnp.int32)
