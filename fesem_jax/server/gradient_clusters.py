"""Clusters of clients by running means of their gradients (CFL-GP)."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding, tree
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.types import Params
from fesem_jax.server.vector_clusters import (
  clusters_of_vectors,
  match_clusters,
  numbered_by_clients,
)


def add_to_means(
  means: Params, counts: jax.Array, gradients: Params, arrived: jax.Array, k: jax.Array
) -> tuple[Params, jax.Array]:
  """Running means [M, K, ...] and counts [M, K] of clients, with a gradient at model k.

  Gradients are [M, ...]; one that is 0, not finite, or of a client that has not arrived
  [M] bool, does not count.
  """
  zeros = jax.tree.map(lambda g: jnp.zeros_like(g[:1]), gradients)
  squared = tree.row_distances(gradients, zeros)
  counted = arrived & (squared > 0) & jnp.isfinite(squared)
  counts = counts.at[:, k].add(counted.astype(jnp.int32))
  share = jnp.where(counted, 1 / jnp.maximum(counts[:, k], 1), 0.0)

  def add(mean: jax.Array, gradient: jax.Array) -> jax.Array:
    old, step = mean[:, k], share.reshape((-1,) + (1,) * (gradient.ndim - 1))
    return mean.at[:, k].set(jnp.where(step > 0, old + step * (gradient - old), old))

  return jax.tree.map(add, means, gradients), counts


def clusters_of_gradients(
  key: jax.Array,
  means: Params,
  counts: jax.Array,
  old: jax.Array,
  client_ids: jax.Array,
  mesh: Mesh,
) -> jax.Array:
  """[M] int32: k-means of mean gradients [M, K, ...], projected on K dimensions.

  Clusters are numbered such that as few clients as possible leave their `old` [M] one.
  Clients without a gradient (`counts` [M, K] int32) stay where they are.
  """
  num_clusters = counts.shape[1]
  products, exists = sharding.on_all_devices(
    (inner_products(means, mesh), counts.sum(axis=1) > 0), mesh
  )
  vectors = leading_coordinates(products, num_clusters)
  cluster = clusters_of_vectors(key, vectors, exists, client_ids, num_clusters)
  cluster = numbered_by_clients(cluster, exists, client_ids, num_clusters)
  cluster = match_clusters(cluster, exists, -jax.nn.one_hot(old, num_clusters))
  return jnp.where(exists, cluster, old).astype(jnp.int32)


def leading_coordinates(products: jax.Array, count: int) -> jax.Array:
  """[M, K] float32 coordinates of M vectors along their first K left singular vectors.

  With G = U S V^T, whose columns are the vectors, U_K^T G = S_K V_K^T follows from the
  inner products G^T G [M, M] alone. `count` is K, at most M.
  """
  values, vectors = jnp.linalg.eigh(products)
  lengths = jnp.sqrt(jnp.maximum(values[-count:], 0.0))
  return vectors[:, -count:] * lengths[None]
