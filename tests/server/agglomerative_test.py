"""Agglomerative clustering against SciPy's."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from fesem_jax.server.agglomerative import Merging, agglomerate, merge_while

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(12, 2))
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=2)
HERE = np.arange(12) % 6 != 5  # Ten of them.


def test_merges_as_scipy_does():
  some = DISTANCES[np.ix_(HERE, HERE)]
  merges = hierarchy.linkage(squareform(some, checks=False), 'average')
  for count in (1, 3, 10):
    result = np.asarray(agglomerate(DISTANCES, HERE, count))
    expected = hierarchy.fcluster(merges, count, 'maxclust')
    assert adjusted_rand_score(result[HERE], expected) == 1
    assert len(set(result[HERE])) == count
    np.testing.assert_array_equal(result[~HERE], np.flatnonzero(~HERE))
    # Each cluster goes by the place of its first member.
    assert all(result[i] == i for i in result)
  height = merges[5, 2]  # Six merges are no higher.
  result = np.asarray(agglomerate(DISTANCES, HERE, 10, height + 1e-5))
  expected = hierarchy.fcluster(merges, height + 1e-5, 'distance')
  assert adjusted_rand_score(result[HERE], expected) == 1
  assert len(set(result[HERE])) == 4


def test_merging_goes_on_beyond_the_threshold_until_few_enough_are_left():
  result = np.asarray(agglomerate(DISTANCES, HERE, 3, 1e-6))
  np.testing.assert_array_equal(result, agglomerate(DISTANCES, HERE, 3))


def test_pairs_as_far_apart_as_the_threshold_merge_and_the_first_of_equal_ones_first():
  line = np.array([0.0, 1.0, 2.0, 4.0, 5.5], np.float32)
  apart, all_of = np.abs(line[:, None] - line[None]), jnp.ones(5, bool)
  result = agglomerate(apart, all_of, 5, 1.0)  # 0 and 1; then 2 is 1.5 from their mean.
  assert result.tolist() == [0, 0, 2, 3, 4]
  assert agglomerate(apart, all_of, 5, 1.5).tolist() == [0, 0, 0, 3, 3]
  # Without a threshold, only their number counts; the last one stays alone.
  assert agglomerate(apart, all_of, 4).tolist() == [0, 0, 2, 3, 4]
  assert result.dtype == jnp.int32
  # Distances of both directions count.
  skew = np.array([[0, 1, 4], [5, 0, 3], [1, 2, 0]], np.float32)
  assert agglomerate(skew, jnp.ones(3, bool), 2).tolist() == [0, 1, 0]


@pytest.mark.parametrize(('linkage', 'power'), [('ward', 2), ('complete', 1)])
def test_other_linkages_merge_as_scipy_does(linkage, power):
  apart = np.where(np.eye(12, dtype=bool), np.inf, DISTANCES**power)
  merges = hierarchy.linkage(POINTS, linkage)
  for count in (2, 5, 8):
    result = merge_while(
      Merging.of(jnp.asarray(apart, jnp.float32)),
      lambda _, merges, count=count: 12 - merges > count,
      linkage,
    )
    expected = hierarchy.fcluster(merges, count, 'maxclust')
    assert adjusted_rand_score(result.first, expected) == 1
    assert int(result.merges) == 12 - count
    heads = np.unique(result.first)
    sizes = [np.sum(np.asarray(result.first) == head) for head in heads]
    np.testing.assert_array_equal(result.sizes[heads], sizes)
