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
  """[S] int32: k-means of vectors [S, N], with the K of best silhouette score.

  It starts from Ward's clusters for K = 2 .. `max_clusters`; see `TOLERANCE`.
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
  """[] float32: mean over points of (b - a) / max(a, b); 0 for one that is alone.

  a is a point's mean distance to its cluster, b the least one to another cluster.
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
  """Lloyd's algorithm from clusters [S]; those without members stay without."""

  def iterate(loop):
    step, _, cluster = loop
    members = jax.nn.one_hot(cluster, num_clusters) * exists[:, None]
    sizes = members.sum(axis=0)
    sums = jnp.matmul(members.T, vectors, precision=_HIGHEST)
    means = sums / jnp.maximum(sizes, 1)[:, None]
    distances = jnp.where(sizes[None] > 0, _squared_distances(vectors, means), jnp.inf)
    return step + 1, cluster, distances.argmin(axis=1).astype(jnp.int32)

  def is_moving(loop):
    step, previous, current = loop
    goes_on = (step < MAX_ITERATIONS) & ((previous != current) & exists).any()
    return (step == 0) | goes_on

  return jax.lax.while_loop(is_moving, iterate, (0, cluster, cluster))[2]


def _squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
  """[S, K] float32 of each row of [S, N] to each of [K, N], without cancellation."""
  return jax.lax.map(lambda row: jnp.square(b - row[None]).sum(axis=1), a)
