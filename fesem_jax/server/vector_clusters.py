"""Clusters of clients by vectors: losses, gradients (CFL-GP) or updates (FedGroup)."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding, tree
from fesem_jax.core.gram_matrices import cosines, inner_products
from fesem_jax.core.types import Params
from fesem_jax.server import linear_assignment, subspaces
from fesem_jax.server.kmeans import kmeans

_HIGHEST = jax.lax.Precision.HIGHEST


def clusters_of_vectors(
  key: jax.Array,
  vectors: jax.Array,
  exists: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
) -> jax.Array:
  """[S] int32: k-means of vectors [S, N]; fewer clients than K have a cluster each."""
  num_clients = vectors.shape[0]
  lacking = max(0, num_clusters - num_clients)
  result = kmeans(
    key,
    jnp.pad(vectors, ((0, lacking), (0, 0))),
    jnp.pad(exists, (0, lacking)),
    num_clusters,
    jnp.pad(client_ids, (0, lacking)),
    seeding='plusplus',
  )
  return result.assignment[:num_clients]


def match_clusters(
  cluster: jax.Array, exists: jax.Array, costs: jax.Array
) -> jax.Array:
  """[S] int32: clusters, numbered such that the costs [S, K] of clients are least."""
  members = jax.nn.one_hot(cluster, costs.shape[1]) * exists[:, None]
  cost = jnp.matmul(members.T, costs, precision=_HIGHEST)
  return linear_assignment.solve(cost)[cluster]


def numbered_by_clients(
  cluster: jax.Array, exists: jax.Array, client_ids: jax.Array, num_clusters: int
) -> jax.Array:
  """[S] int32: clusters numbered 0, 1, ... by the smallest id of their clients."""
  last = jnp.iinfo(jnp.int32).max
  ids = jnp.where(exists, client_ids, last)
  first = jnp.full(num_clusters, last).at[cluster].min(ids)
  return jnp.argsort(jnp.argsort(first))[cluster].astype(jnp.int32)


def add_to_means(
  means: Params, counts: jax.Array, gradients: Params, arrived: jax.Array, k: jax.Array
) -> tuple[Params, jax.Array]:
  """Running means [M, K, ...] and counts [M, K], with gradients [M, ...] at model k.

  One that is 0, not finite, or has not arrived [M] bool does not count.
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

  As few clients as possible leave their `old` [M] cluster, and none without a gradient.
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
  """[M, K] float32 coordinates of M vectors along K left singular vectors."""
  # With G = U S V^T, whose columns are the vectors, U_K^T G = S_K V_K^T follows from
  # the inner products G^T G [M, M] alone.
  values, vectors = subspaces.eigh(products)
  lengths = jnp.sqrt(jnp.maximum(values[-count:], 0.0))
  return vectors[:, -count:] * lengths[None]


def clusters_of_directions(
  key: jax.Array,
  updates: Params,
  exists: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
  mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
  """K-means of the cosines of updates with their first K left singular vectors.

  Their distances are FedGroup's EDC, but for a factor. Returns [S] int32 clusters and
  [S] bool, who is in one: not who does not exist or has an update of length 0.
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
  nearest = jnp.where(is_close, similarity.argmax(axis=1), len(has_length))
  return nearest.astype(jnp.int32)
