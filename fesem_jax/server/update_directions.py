"""Clusters of clients by the directions of their first updates (FedGroup)."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding
from fesem_jax.core.gram_matrices import cosines, inner_products
from fesem_jax.core.types import Params
from fesem_jax.server.gradient_clusters import leading_coordinates
from fesem_jax.server.vector_clusters import (
  clusters_of_vectors,
  numbered_by_clients,
)


def clusters_of_directions(
  key: jax.Array,
  updates: Params,
  exists: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
  mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
  """K-means of the cosines of updates with their first K left singular vectors.

  Euclidean distances of these cosines are FedGroup's measure EDC, but for a factor.
  Returns [S] int32 clusters, numbered by the smallest ids of their clients, and [S]
  bool, who is in one: not who does not exist or has an update of length 0.
  """
  products, exists = sharding.on_all_devices(
    (inner_products(updates, mesh), exists), mesh
  )
  squares = jnp.diagonal(products)
  exists &= (squares > 0) & jnp.isfinite(squares)
  pairs = exists[:, None] & exists[None]
  coordinates = leading_coordinates(jnp.where(pairs, products, 0.0), num_clusters)
  lengths = jnp.sqrt(jnp.where(exists, squares, 1.0))
  vectors = jnp.where(exists[:, None], coordinates / lengths[:, None], 0.0)
  cluster = clusters_of_vectors(key, vectors, exists, client_ids, num_clusters)
  return numbered_by_clients(cluster, exists, client_ids, num_clusters), exists


def nearest_direction(
  vectors: Params, directions: Params, least: float | jax.Array = -2.0
) -> jax.Array:
  """[S] int32: the direction [K, ...] of greatest cosine; K if that is too small."""
  has_length = cosines(directions, directions).diagonal() > 0
  similarity = jnp.where(has_length[None], cosines(vectors, directions), -jnp.inf)
  is_close = similarity.max(axis=1) >= least
  return jnp.where(is_close, similarity.argmax(axis=1), len(has_length)).astype(
    jnp.int32
  )
