"""Clusters of vectors whose number is chosen by the silhouette score."""

import jax
import jax.numpy as jnp

from fesem_jax.server.agglomerative import Merging, merge_while
from fesem_jax.server.kmeans import MAX_ITERATIONS
from fesem_jax.server.vector_clusters import numbered_by_clients

_HIGHEST = jax.lax.Precision.HIGHEST

# More clusters must score so much more than fewer.
TOLERANCE = 1.1


def clusters_of_best_number(
  vectors: jax.Array, exists: jax.Array, client_ids: jax.Array, max_clusters: int
) -> jax.Array:
  """K-means of vectors, with the number of clusters of the best silhouette score.

  For K = 2, 3, ..., Ward's agglomerative clustering is cut at K clusters. One K after
  the other, K becomes the choice if its score is more than `TOLERANCE` times that of
  the choice before. K-means then starts from Ward's K clusters.

  Args:
    vectors: [S, N] float32; finite, also of clients left out.
    exists: [S] bool, clients to cluster.
    client_ids: [S] int32, so that the order of clients does not matter.
    max_clusters: largest K, at least 2. Fewer than the number of clients are made, as
      the score needs a cluster of two.

  Returns:
    [S] int32 in 0..most-1; any for clients left out. Of two clients, each is a cluster.
  """
  order = jnp.argsort(client_ids)  # What comes first of equal distances decides.
  vectors, exists = vectors[order], exists[order]
  distances = _squared_distances(vectors, vectors)
  pair_distances = jnp.sqrt(distances)
  pairs = exists[:, None] & exists[None] & ~jnp.eye(len(exists), dtype=bool)
  merging, count = Merging.of(jnp.where(pairs, distances, jnp.inf)), exists.sum()
  places = jnp.arange(len(exists))

  def cut(merging, number):
    merged = merge_while(merging, lambda _, merges: count - merges > number, 'ward')
    cluster = numbered_by_clients(merged.first, exists, places, len(exists))
    cluster = jnp.minimum(cluster, max_clusters - 1)
    score = silhouette_score(pair_distances, cluster, exists, max_clusters)
    return merged, (cluster, jnp.where(number < count, score, -jnp.inf))

  _, (clusters, scores) = jax.lax.scan(cut, merging, jnp.arange(max_clusters, 1, -1))
  scores = scores[::-1]  # The clusters are cut from many to few.

  def better(k, best):
    score, _ = best
    return jax.tree.map(
      lambda new, old: jnp.where(scores[k] > TOLERANCE * score, new, old),
      (scores[k], k),
      best,
    )

  _, best = jax.lax.fori_loop(
    0, max_clusters - 1, better, (jnp.float32(-1), jnp.int32(0))
  )
  assignment = refined(vectors, clusters[max_clusters - 2 - best], exists, max_clusters)
  return assignment[jnp.argsort(order)]


def silhouette_score(
  distances: jax.Array, cluster: jax.Array, exists: jax.Array, num_clusters: int
) -> jax.Array:
  """[] float32: mean over points of (b - a) / max(a, b).

  a is a point's mean distance to the others of its cluster, b the least mean distance
  to those of another one. A point that is alone counts as 0. Distances are [S, S]
  float32, `cluster` is [S] int32 in 0..K-1, and `exists` [S] bool says which points
  count.
  """
  members = jax.nn.one_hot(cluster, num_clusters) * exists[:, None]
  sizes = members.sum(axis=0)[None]
  sums = jnp.matmul(distances, members, precision=_HIGHEST)
  is_member = members > 0
  other_distances = jnp.where(
    is_member | (sizes == 0), jnp.inf, sums / jnp.maximum(sizes, 1)
  )
  b, size = other_distances.min(axis=1), (members * sizes).sum(axis=1)
  a = jnp.where(is_member, sums, 0.0).sum(axis=1) / jnp.maximum(size - 1, 1)
  has_score = (size > 1) & jnp.isfinite(b)
  value = jnp.where(has_score, b - a, 0.0) / jnp.maximum(jnp.maximum(a, b), 1e-30)
  return jnp.where(has_score, value, 0.0).sum() / jnp.maximum(exists.sum(), 1)


def refined(
  vectors: jax.Array, cluster: jax.Array, exists: jax.Array, num_clusters: int
) -> jax.Array:
  """Lloyd's algorithm from given clusters; those without members stay without.

  Vectors are [S, N] float32 and clusters [S] int32 in 0..K-1; `exists` [S] bool says
  who counts.
  """

  def iterate(loop):
    step, _, cluster = loop
    members = jax.nn.one_hot(cluster, num_clusters) * exists[:, None]
    sizes = members.sum(axis=0)
    sums = jnp.matmul(members.T, vectors, precision=_HIGHEST)
    means = sums / jnp.maximum(sizes, 1)[:, None]
    distances = jnp.where(sizes[None] > 0, _squared_distances(vectors, means), jnp.inf)
    return step + 1, cluster, distances.argmin(axis=1).astype(jnp.int32)

  def is_moving(loop):
    step, before, now = loop
    goes_on = (step < MAX_ITERATIONS) & ((before != now) & exists).any()
    return (step == 0) | goes_on

  return jax.lax.while_loop(is_moving, iterate, (0, cluster, cluster))[2]


def _squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
  """[S, K] float32 of each row of [S, N] to each of [K, N], without cancellation."""
  return jax.lax.map(lambda row: jnp.square(b - row[None]).sum(axis=1), a)
