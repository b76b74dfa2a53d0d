"""What is drawn for the clients of a round: keys, coins and cohorts, on the device."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax import streams
from fesem_jax.base import Cohort, FederatedData


def client_keys(key: jax.Array, data: FederatedData, ids: jax.Array) -> jax.Array:
  """[S] keys folded from (key, client id), whatever the client's position."""
  client_ids = jnp.asarray(data.client_ids).at[ids].get(mode='clip')
  return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


def coin(
  key: jax.Array, data: FederatedData, ids: jax.Array, probability: float, stream: int
) -> jax.Array:
  """[S] bool: one toss for each client of a round, true with `probability`."""
  if probability == 0:
    return jnp.zeros(ids.shape, bool)
  keys = client_keys(key, data, ids)

  def toss(k):
    return jax.random.bernoulli(streams.fold(k, stream), probability)

  return jax.vmap(toss)(keys)


def sample_clients(
  key: jax.Array, data: FederatedData, count: int, mesh: Mesh
) -> Cohort:
  """A random cohort, drawn by client id, so that clients' order does not matter.

  Args:
    key: decides which clients are drawn.
    data: training split; clients without examples come last.
    count: clients to draw; empty places fill up to a multiple of the device count.
    mesh: the devices.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(data.client_ids))
  ids = random_order(keys, data.sizes() > 0)[:count]
  padding = jnp.full(-ids.shape[0] % mesh.size, data.num_clients, jnp.int32)
  return Cohort(jnp.concatenate([ids, padding]), everyone=False)


def random_order(keys: jax.Array, exists: jax.Array) -> jax.Array:
  """[S] int32 positions in a random order; those that do not exist come last.

  Args:
    keys: [S] one for each client.
    exists: [S] bool.
  """
  draw = jnp.where(exists, jax.vmap(jax.random.uniform)(keys), 2.0)
  return jnp.argsort(draw).astype(jnp.int32)
