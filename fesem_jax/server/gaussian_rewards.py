"""FedGWC's rewards, interactions and splits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.sums import or_one

# The most parts of a cluster, as in the authors' code.
MOST_PARTS = 4
MAX_CLUSTERS = 16
# Added to variances; a client alone in its cluster has none.
_LEAST_VARIANCE = 1e-12


def rewards(losses: jax.Array, weights: jax.Array, part: jax.Array) -> jax.Array:
  """[S] float32 mean rewards of losses [S, T], weights [S, T], clusters [S, K]."""
  total = or_one(jnp.einsum('sk,st->kt', part, weights))

  def mean(values):  # [S, T], that of each client's cluster
    means = jnp.einsum('sk,st->kt', part, weights * values) / total
    return jnp.einsum('sk,kt->st', part, means)

  squares = (losses - mean(losses)) ** 2
  values = jnp.exp(-squares / (2 * (mean(squares) + _LEAST_VARIANCE)))
  visited = weights > 0
  return jnp.where(visited, values, 0.0).sum(axis=1) / or_one(visited.sum(axis=1))


def updated(
  rows: jax.Array, ids: jax.Array, reward: jax.Array, part: jax.Array, share: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The cohort's rows [S, M] of P after a round, and mean squared changes [K].

  `ids` [S] are positions of its clients, `part` [S, K] their clusters, 0 for those that
  do not count, and `share` [K] the new value's weight.
  """
  old = rows.at[:, ids].get(mode='fill', fill_value=0.0)
  together = jnp.einsum('sk,tk->st', part, part) > 0
  new_value = reward / or_one(part @ (reward @ part))
  rate = (part @ share)[:, None]
  change = jnp.where(together, rate * (new_value[:, None] - old), 0.0)
  pairs = or_one(part.sum(axis=0)) ** 2
  squares = (change**2).sum(axis=1) @ part
  return rows.at[:, ids].add(change, mode='drop'), squares / pairs


def split_clusters(
  interactions: np.ndarray,
  assignment: np.ndarray,
  count: int,
  ready: np.ndarray,
  exists: np.ndarray,
  *,
  min_size: int,
  gamma: float,
) -> tuple[np.ndarray, np.int32]:
  """Splits clusters `ready` [K]; returns the assignment [M] and how many there are."""
  assignment = np.array(assignment, np.int32)
  for k in np.flatnonzero(ready[:count]):
    members = np.flatnonzero((assignment == k) & exists)
    most = min(len(members) // min_size, MOST_PARTS, MAX_CLUSTERS - count + 1)
    if most < 2:
      continue
    block = interactions[np.ix_(members, members)]
    parts = best_parts(affinities(block, gamma), most)
    for label in np.unique(parts[parts != parts[0]]):
      assignment[members[parts == label]] = count
      count += 1
  return assignment, np.int32(count)


def affinities(interactions: np.ndarray, gamma: float) -> np.ndarray:
  """[n, n] float64 similarities of the rows of P [n, n], each pair without its own."""
  rows = np.asarray(interactions, np.float64)
  rows = (rows - rows.min()) / max(np.ptp(rows), 1e-8)
  squares, diagonal = (rows**2).sum(axis=1), rows.diagonal()
  distances = squares[:, None] + squares[None] - 2 * rows @ rows.T
  distances -= (diagonal[:, None] - rows.T) ** 2 + (rows - diagonal[None]) ** 2
  return np.exp(-gamma * np.maximum(distances, 0))


def best_parts(similarity: np.ndarray, most: int) -> np.ndarray:
  """[n] labels of 2 to `most` parts, of the least Davies-Bouldin index, or of one."""
  from sklearn.cluster import SpectralClustering  # Slow to import.
  from sklearn.manifold import SpectralEmbedding
  from sklearn.metrics import davies_bouldin_score

  best, labels = 1.0, np.zeros(len(similarity), int)
  for n in range(2, most + 1):
    same: Any = {'n_components': n, 'affinity': 'precomputed', 'random_state': 0}
    points = SpectralEmbedding(**same).fit_transform(similarity)
    clustering = SpectralClustering(n, assign_labels='cluster_qr', **same)
    parts = clustering.fit_predict(similarity)
    score = davies_bouldin_score(points, parts) if np.ptp(parts) else best
    if score < best:
      best, labels = score, parts
  return labels
