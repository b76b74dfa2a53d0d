"""FedSoft against float64, and the groups that it finds."""

import functools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_soft import pull_to_all
from tests.support import helpers
from tests.support.methods import (
  over_seeds,
  run,
)


@functools.cache
def built():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('fed_soft', local, num_clusters=2)


@pytest.mark.slow
@over_seeds(3)
def test_the_greatest_weights_are_the_planted_groups(seed):
  groups = np.arange(20) % 2
  data = helpers.federation([60] * 20, seed=seed, groups=groups)
  state, infos = run(built(), data, rounds=30, seed=seed)
  found = built().deployed(state, data).clusters()
  assert adjusted_rand_score(groups, found) == 1.0
  assert {int(info.trained) for info in infos} == {20}


def test_many_pulls_are_one_to_their_weighted_mean():
  centers = {'w': np.array([[1.0, 2.0], [5.0, -2.0]], np.float32)}
  # The last client, such as padding, is pulled nowhere.
  pulls = np.array([[1, 3], [2, 0], [0.25, 0.25], [0, 0]], np.float32)
  anchor, factors = pull_to_all(centers, pulls, 0.5)
  np.testing.assert_allclose(factors, [1, 0.5, 0.125, 0])
  np.testing.assert_allclose(anchor['w'], [[4, -1], [1, 2], [3, 0], [0, 0]])
  assert pull_to_all(centers, pulls, 0) is None
