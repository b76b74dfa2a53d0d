"""FedCluster's decision: which clusters to split, and how."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import tree
from fesem_jax.utils import processes

# Of scikit-learn's `AgglomerativeClustering`. 'single' is the paper's: the bipartition
# with the least largest similarity across it.
Linkage = Literal['complete', 'average', 'single']


@dataclasses.dataclass(frozen=True)
class SplitRule:
  """When a cluster is split in two (Sattler et al.; Appendix of Long et al.).

  Attributes:
    max_clusters: the most clusters.
    eps1: a cluster has converged below this mean update, relative to the largest.
    eps2: a client has not converged above this L2 norm of its update.
    gamma: least separation of the two parts.
    min_size: clusters of this many clients or fewer stay whole.
    linkage: of the agglomerative clustering; 'single' is the paper's optimum.
  """

  max_clusters: int = 16
  eps1: float = 0.4
  eps2: float = 0.8
  gamma: float = 0.13
  min_size: int = 2
  linkage: str = 'complete'


def with_splits(
  state: Any, updates: tuple[jax.Array, jax.Array], rule: SplitRule
) -> tuple[np.ndarray, Any]:
  """The clusters [M] before, and the state of FedCluster after `split_clusters`."""
  products, weights, before = processes.on_host((*updates, state.assignment))
  count_before = int(state.num_clusters)
  after, count = split_clusters(products, weights, before, count_before, rule)
  parent = np.arange(rule.max_clusters, dtype=np.int32)
  parent[after] = before
  centers = tree.take(state.centers, jnp.asarray(parent))
  new = {'centers': centers, 'assignment': after, 'num_clusters': count}
  return before, state._replace(**new)


def split_clusters(
  products: np.ndarray,
  weights: np.ndarray,
  assignment: np.ndarray,
  num_clusters: int,
  rule: SplitRule,
) -> tuple[np.ndarray, np.int32]:
  """Splits each cluster that has converged while its clients have not.

  `products` [M, M] are inner products of updates, 0 for clients that stay. Returns the
  assignment [M] int32 and the number of clusters.
  """
  products, weights = np.asarray(products, np.float64), np.asarray(weights, np.float64)
  assignment = np.array(assignment, np.int32)
  moved = products.diagonal() > 0
  for k in range(num_clusters):
    members = np.flatnonzero((assignment == k) & moved)  # Ids of clients.
    if num_clusters == rule.max_clusters or len(members) <= max(rule.min_size, 1):
      continue
    block = products[np.ix_(members, members)]
    if not np.isfinite(block).all() or not weights[members].any():
      continue  # Updates beyond what float32 can multiply, or without a mean.
    norms = np.sqrt(block.diagonal())
    shares = weights[members] / weights[members].sum()
    mean_norm = np.sqrt(max(shares @ block @ shares, 0))
    if mean_norm >= rule.eps1 * norms.max() or norms.max() <= rule.eps2:
      continue
    similarity = np.clip(block / np.outer(norms, norms), -1, 1)
    second = bipartition(similarity, rule.linkage)
    across = similarity[np.ix_(~second, second)].max()
    if np.sqrt((1 - across) / 2) > rule.gamma:
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
