"""Splits of clusters by similarity of the rows of a matrix (FedGWC)."""

from typing import Any

import numpy as np

# The most parts of a cluster, as in the authors' code.
MOST_PARTS = 4
MAX_CLUSTERS = 16


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
