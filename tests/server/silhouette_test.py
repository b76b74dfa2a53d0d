"""The number of clusters by the silhouette score, against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from fesem_jax.server import silhouette

MOST = 6
chosen = jax.jit(silhouette.clusters_of_best_number, static_argnums=3)


def points(seed, num_groups, spread, count=24):
  """[count + 4, 3]: groups of points, and four that are to be left out."""
  rng = np.random.default_rng(seed)
  means = rng.normal(size=(num_groups, 3)) * 4
  points_values = means[np.arange(count) % num_groups] + spread * rng.normal(
    size=(count, 3)
  )
  return np.concatenate([points_values, np.full((4, 3), 50.0)]).astype(np.float32)


def expected(points_values, most):
  """Clusters of the points [n, 3] by scikit-learn, and the scores of K = 2, 3, ..."""
  best, labels, scores = -1.0, None, []
  for count in range(2, most + 1):
    ward = AgglomerativeClustering(count, linkage='ward').fit_predict(points_values)
    scores.append(silhouette_score(points_values, ward))
    if scores[-1] > 1.1 * best:
      best, labels = scores[-1], ward
  means = np.stack(
    [points_values[labels == k].mean(axis=0) for k in range(labels.max() + 1)]
  )
  return KMeans(len(means), init=means, n_init=1, tol=0).fit_predict(
    points_values
  ), scores


# The last two have a number of clusters whose score is higher, but not by a tenth.
@pytest.mark.parametrize(
  ('seed', 'num_groups', 'spread', 'clusters', 'highest'),
  [
    (1, 5, 0.2, 5, 5),
    (1, 6, 0.2, 6, 6),
    (2, 4, 3.0, 2, 2),
    (3, 1, 1.0, 2, 5),
    (7, 1, 1.0, 4, 5),
  ],
)
def test_the_number_is_that_of_the_best_score_but_for_a_tenth(
  seed, num_groups, spread, clusters, highest
):
  vectors, exists = points(seed, num_groups, spread), np.arange(28) < 24
  labels, scores = expected(vectors[exists], MOST)
  order = np.random.default_rng(seed).permutation(28)  # Clients, and their ids.
  result = chosen(vectors[order], jnp.asarray(exists[order]), jnp.asarray(order), MOST)
  result = np.asarray(result)[np.argsort(order)][exists]
  assert adjusted_rand_score(labels, result) == 1.0
  assert (len(set(result)), np.argmax(scores) + 2) == (clusters, highest)
  assert 0 <= result.min() <= result.max() < MOST


@pytest.mark.parametrize(('count', 'clusters'), [(1, 1), (2, 2), (3, 2)])
def test_of_very_few_clients(count, clusters):
  vectors = np.zeros((28, 3), np.float32)
  vectors[:3] = [[0, 0, 0], [9, 0, 0], [9, 1, 0]]
  result = chosen(vectors, jnp.arange(28) < count, jnp.arange(28), MOST)
  assert len(set(np.asarray(result)[:count].tolist())) == clusters


def test_the_score_is_scikit_learns():
  rng = np.random.default_rng(0)
  points_values = rng.normal(size=(12, 3))
  distances = np.linalg.norm(
    points_values[:, None] - points_values[None], axis=2
  ).astype(np.float32)
  # Of five numbers, one is of a single point and one of none.
  cluster = np.array([0, 3, 0, 1, 3, 1, 3, 0, 4, 3, 1, 4])
  exists = np.arange(12) % 11 != 0  # Ten; 4 is alone since the last is left out.
  score = jax.jit(silhouette.silhouette_score, static_argnums=3)
  some = np.flatnonzero(exists)
  want = silhouette_score(
    distances[np.ix_(some, some)], cluster[some], metric='precomputed'
  )
  np.testing.assert_allclose(score(distances, cluster, exists, 5), want, rtol=1e-5)
  # Scores do not depend on the unit.
  tiny = score(1e-20 * distances, cluster, exists, 5)
  np.testing.assert_allclose(tiny, want, rtol=1e-5)
  # Without two clusters, in one point and in none there is nothing to score.
  assert score(distances, 0 * cluster, exists, 5) == 0
  assert score(0 * distances, cluster, exists, 5) == 0
  assert score(distances, cluster, exists & False, 5) == 0


def test_clusters_are_refined_until_no_point_moves():
  # From one point and the rest to 0, 1, 2 and 9, 10, 11, in several steps.
  points = np.array([0, 1, 2, 9, 10, 11, -90], np.float32)[:, None]
  exists = jnp.arange(7) < 6
  result = silhouette.refined(points, jnp.array([0, 2, 2, 2, 2, 2, 0]), exists, 3)
  # No client is in 1, which stays so; one that is left out draws no mean.
  assert result[:6].tolist() == [0, 0, 0, 2, 2, 2]
  assert result.dtype == jnp.int32
  # A point as near to both means goes to the smaller number.
  points = np.array([0, 2, 4], np.float32)[:, None]
  tie = silhouette.refined(points, jnp.array([0, 1, 1]), jnp.ones(3, bool), 2)
  assert tie.tolist() == [0, 1, 1]
  middle = silhouette.refined(points, jnp.array([0, 2, 1]), jnp.arange(3) != 1, 3)
  assert middle.tolist() == [0, 0, 1]
