"""Clusters of clients by a vector of each, and the numbers that these clusters get."""

import jax
import jax.numpy as jnp

from fesem_jax.server import linear_assignment
from fesem_jax.server.kmeans import kmeans

_HIGHEST = jax.lax.Precision.HIGHEST


def clusters_of_vectors(
  key: jax.Array,
  vectors: jax.Array,
  exists: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
) -> jax.Array:
  """[S] int32: k-means of vectors [S, N], seeded by k-means++.

  With fewer clients than K, each is a cluster. Those that do not exist get any.
  """
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
  """[S] int32: clusters numbered 0, 1, ... by the smallest id of their clients.

  The numbers then depend neither on the order of clients nor on the seeds of k-means.
  """
  last = jnp.iinfo(jnp.int32).max
  ids = jnp.where(exists, client_ids, last)
  first = jnp.full(num_clusters, last).at[cluster].min(ids)
  return jnp.argsort(jnp.argsort(first))[cluster].astype(jnp.int32)
