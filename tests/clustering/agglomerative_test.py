"""Agglomerative clustering against SciPy's."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from fesem_jax.clustering.agglomerative import LINKAGES, agglomerate

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(12, 2))
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=2)
HERE = np.arange(12) % 6 != 5  # Ten of them.


@pytest.mark.parametrize('linkage', LINKAGES)
def test_merges_as_scipy_does(linkage):
  some = DISTANCES[np.ix_(HERE, HERE)]
  merges = hierarchy.linkage(squareform(some, checks=False), linkage)
  for count in (1, 3, 10):
    found = np.asarray(agglomerate(DISTANCES, HERE, count, linkage=linkage))
    wanted = hierarchy.fcluster(merges, count, 'maxclust')
    assert adjusted_rand_score(found[HERE], wanted) == 1
    assert len(set(found[HERE])) == count
    np.testing.assert_array_equal(found[~HERE], np.flatnonzero(~HERE))
    # Each cluster goes by the place of its first member.
    assert all(found[i] == i for i in found)
  height = merges[5, 2]  # Six merges are no higher.
  found = np.asarray(agglomerate(DISTANCES, HERE, 10, height + 1e-5, linkage))
  wanted = hierarchy.fcluster(merges, height + 1e-5, 'distance')
  assert adjusted_rand_score(found[HERE], wanted) == 1
  assert len(set(found[HERE])) == 4


def test_merging_goes_on_beyond_the_threshold_until_few_enough_are_left():
  found = np.asarray(agglomerate(DISTANCES, HERE, 3, 1e-6))
  np.testing.assert_array_equal(found, agglomerate(DISTANCES, HERE, 3))
