"""The number of clusters, estimated from distances between clients' models.

The models are to come from one common start (`common_start`).
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from fesem_jax.evaluation.agreement import adjusted_rand_index

# Clouds without clusters that the clients' models are compared with: where a
# silhouette is above all 19, p is 1 / 20.
_CLOUDS = 19
_RESTARTS = 5
_MAX_P = 0.05
# Steinley (2004) calls the agreement of two clusterings good from here on.
_STABLE = 0.8


class Figures(NamedTuple):
  """The metrics of one number of clusters.

  Attributes:
    num_clusters: K.
    silhouette: mean over seeds; None for K = 1, or where it is not defined.
    of_one_cloud: the mean silhouette of clouds without clusters; None likewise.
    p_value: how often such a cloud has a silhouette as large, the median over seeds;
      None likewise.
    stability: mean adjusted Rand index between the clusters of two seeds; None with
      fewer than two.
  """

  num_clusters: int
  silhouette: float | None
  of_one_cloud: float | None
  p_value: float | None
  stability: float | None


def silhouettes(
  points: np.ndarray, num_clusters: Sequence[int], seed: int
) -> list[float | None]:
  """The silhouette of k-means for each number of clusters.

  Args:
    points: [S, D] float64.
    num_clusters: each K.
    seed: decides where k-means starts.

  Returns:
    scikit-learn's `silhouette_score` of the Euclidean distances; None for K = 1 and for
    K >= S, where it is not defined, 0 where fewer than two points differ.
  """
  from sklearn import metrics  # Slow to import.

  square = np.square(points).sum(axis=1)
  distances = square[:, None] + square[None] - 2 * points @ points.T
  distances = np.sqrt(np.maximum(distances, 0))
  np.fill_diagonal(distances, 0)
  scores: list[float | None] = []
  for k in num_clusters:
    if not 1 < k < len(points):
      scores.append(None)
      continue
    if not distances.max() > 1e-12 * np.sqrt(square.max(initial=1e-300)):
      scores.append(0.0)
      continue
    labels = k_means(points, k, seed)
    score = metrics.silhouette_score(distances, labels, metric='precomputed')
    scores.append(float(score))
  return scores


def k_means(
  points: np.ndarray, k: int, seed: int, restarts: int = _RESTARTS
) -> np.ndarray:
  """[S] int cluster of each point, the best of several starts."""
  from sklearn import cluster  # Slow to import.

  means = cluster.KMeans(k, n_init=restarts, random_state=seed)
  with threadpool_limits(1):  # Starting threads takes longer than the work.
    return means.fit_predict(points)


def clusterings(
  gram: np.ndarray, num_clusters: Sequence[int], seed: int
) -> list[np.ndarray]:
  """[S] int clusters of k-means for each K, as `against_one_cloud` makes them."""
  points = coordinates(gram)
  return [k_means(points, k, seed) for k in num_clusters]


def coordinates(gram: np.ndarray) -> np.ndarray:
  """[S, S] float64 points that have the inner products `gram` [S, S]."""
  values, vectors = np.linalg.eigh(gram)
  return vectors * np.sqrt(np.maximum(values, 0))


def one_cloud(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Points of the same mean and covariance without any clusters.

  The rows of the matrix are turned by a random rotation that leaves their mean where
  it is. If the points are drawn from one Gaussian, whatever its covariance, the turned
  ones are as probable (a rotation test), and clusters do not survive it.

  Args:
    points: [S, D].
    rng: draws the rotation.

  Returns:
    [S, D].
  """
  size = len(points)
  # [S, S - 1], orthogonal to the mean of the rows.
  about_mean = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, 1:]]))[0]
  about_mean = about_mean[:, 1:]
  # Q is uniform only if the diagonal of R is positive.
  q, r = np.linalg.qr(rng.normal(size=(size - 1, size - 1)))
  turned = q * np.sign(np.diagonal(r))[None]
  mean = points.mean(axis=0, keepdims=True)
  return mean + about_mean @ (turned @ (about_mean.T @ points))


def against_one_cloud(
  gram: np.ndarray, num_clusters: Sequence[int], seed: int
) -> tuple[list[float | None], list[list[float | None]]]:
  """Silhouettes of models beside those of clouds without clusters.

  Args:
    gram: [S, S] float64 inner products of models about their mean.
    num_clusters: each K.
    seed: decides the clouds, and where k-means starts.

  Returns:
    The silhouette for each K, and for each of 19 clouds the same.
  """
  points = coordinates(gram)
  rng = np.random.default_rng(seed)
  clouds = [one_cloud(points, rng) for _ in range(_CLOUDS)]
  scores = silhouettes(points, num_clusters, seed)
  return scores, [silhouettes(cloud, num_clusters, seed) for cloud in clouds]


def p_value(silhouette: float, of_clouds: Sequence[float]) -> float:
  """Probability of a silhouette as large if the models were one Gaussian cloud."""
  return (1 + sum(s >= silhouette for s in of_clouds)) / (1 + len(of_clouds))


def stability(assignments: Sequence[np.ndarray]) -> float | None:
  """Mean adjusted Rand index between every two clusterings; None of fewer than two.

  Args:
    assignments: each [S] int, the cluster of each of the same clients.
  """
  pairs = itertools.combinations(assignments, 2)
  scores = [adjusted_rand_index(a, b) for a, b in pairs]
  return float(np.mean(scores)) if scores else None


def recommend(figures: Sequence[Figures]) -> tuple[int | None, str]:
  """Recommends a number of clusters by their metrics, with the reason.

  A clustering is worth training if it is there (its silhouette is larger than those of
  one Gaussian cloud, p <= 0.05) and can be found again (the clusters of different
  seeds agree, a stability of at least 0.8). Of the numbers of clusters that pass both,
  the one whose silhouette is farthest above that of the cloud is recommended; if none
  passes, 1.

  Args:
    figures: of each number of clusters, in any order.

  Returns:
    K, or None where it cannot be told, and one or two sentences.
  """
  several = [f for f in figures if f.num_clusters > 1]
  if not several:
    return 1, 'K = 1 is the only number of clusters that was tried.'
  known = [  # With p, stability and how far the silhouette is above the cloud's.
    (f, f.p_value, f.stability, (f.silhouette or 0.0) - (f.of_one_cloud or 0.0))
    for f in several
    if f.p_value is not None and f.stability is not None
  ]
  if not known:
    return None, (
      'No K is recommended: stability can be measured only with at least two seeds '
      'that finish, and with more clients than clusters.'
    )
  tight = [each for each in known if each[1] <= _MAX_P]
  if not tight:
    return 1, (
      "K = 1: for no K tried are the clusters of the clients' models tighter than "
      'those of one Gaussian cloud of the same spread.'
    )
  stable = [each for each in tight if each[2] >= _STABLE]
  if not stable:
    best, *_ = max(tight, key=lambda each: each[2])
    return 1, (
      f'K = 1: the clusters are not stable across seeds. Of those that are tighter '
      f"than one Gaussian cloud's, the most stable are those of K = "
      f'{best.num_clusters}, of adjusted Rand index {best.stability:.2f} between '
      f'seeds, below {_STABLE}.'
    )
  best, _, _, excess = max(stable, key=lambda each: each[3])
  reason = (
    f'K = {best.num_clusters}: its silhouette is {excess:.2f} above that of one '
    f'Gaussian cloud of the same spread, the most of all K with clusters stable across '
    f'seeds (adjusted Rand index {best.stability:.2f}, at least {_STABLE}).'
  )
  if len(several) > 1 and best.num_clusters == max(f.num_clusters for f in several):
    reason += ' It is the largest K tried: try larger ones.'
  return best.num_clusters, reason
