"""FedCluster's decision: which clusters to split, and how."""

from typing import Literal

import numpy as np

# Of scikit-learn's `AgglomerativeClustering`. 'single' is the paper's: the bipartition
# with the least largest similarity across it.
Linkage = Literal['complete', 'average', 'single']


def split_clusters(
  products: np.ndarray,
  weights: np.ndarray,
  assignment: np.ndarray,
  num_clusters: int,
  *,
  max_clusters: int,
  eps1: float,
  eps2: float,
  gamma: float,
  min_size: int,
  linkage: str,
) -> tuple[np.ndarray, np.int32]:
  """Assignment [M] once each cluster that converged, but not its clients, is split."""
  products, weights = np.asarray(products, np.float64), np.asarray(weights, np.float64)
  assignment = np.array(assignment, np.int32)
  moved = products.diagonal() > 0
  for k in range(num_clusters):
    members = np.flatnonzero((assignment == k) & moved)  # Ids of clients.
    if num_clusters == max_clusters or len(members) <= max(min_size, 1):
      continue
    block = products[np.ix_(members, members)]
    if not np.isfinite(block).all() or not weights[members].any():
      continue  # Updates beyond what float32 can multiply, or without a mean.
    norms = np.sqrt(block.diagonal())
    shares = weights[members] / weights[members].sum()
    mean_norm = np.sqrt(max(shares @ block @ shares, 0))
    if mean_norm >= eps1 * norms.max() or norms.max() <= eps2:
      continue
    similarity = np.clip(block / np.outer(norms, norms), -1, 1)
    second = bipartition(similarity, linkage)
    across = similarity[np.ix_(~second, second)].max()
    if np.sqrt((1 - across) / 2) > gamma:
      # `second` marks positions within the parent; clients are stored by id.
      assignment[members[second]] = num_clusters
      num_clusters += 1
  return assignment, np.int32(num_clusters)


def bipartition(similarity: np.ndarray, linkage: str) -> np.ndarray:
  """[n] bool: clients outside of the first one's part, by similarities [n, n]."""
  from sklearn.cluster import AgglomerativeClustering  # Slow to import.

  parts = AgglomerativeClustering(2, metric='precomputed', linkage=linkage)
  labels = parts.fit_predict(1 - (similarity + similarity.T) / 2)
  return labels != labels[0]
