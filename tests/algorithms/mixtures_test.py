"""Methods with several centers for each client."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common import learners
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.algorithms.fed_rc import shares_of_classes
from fesem_jax.algorithms.fed_soft import pull_to_all
from fesem_jax.core.federated_data import FederatedData
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  matrix,
  over_seeds,
  run,
)

# FedEM.


def test_mixtures_are_means_over_examples_that_exist():
  # Of one, two and no examples; what stands behind them does not count.
  data = FederatedData.from_arrays(
    np.zeros((3, 2), np.float32), np.zeros(3, int), [1, 2, 0], num_classes=2
  )
  shares = np.full((3, 2, 2), np.nan, np.float32)
  shares[0, :, 0], shares[1] = [0.25, 0.75], [[0.5, 0.25], [0.5, 0.75]]
  result = learners.mixture_of(shares, data, helpers.everyone(data))
  np.testing.assert_allclose(result, [[0.25, 0.75], [0.375, 0.625], [0, 0]])


def test_a_client_reports_on_all_of_its_models_together():
  data, local = helpers.federation([4, 1, 3]), helpers.local(2, hidden=())
  centers = random_models(local, jax.random.key(0), 2)
  shares = jnp.full((3, 2, 4), 0.5)
  train = jax.jit(
    lambda shares: learners.train(
      local, centers, shares, data, helpers.everyone(data), jax.random.key(1), 'uniform'
    )
  )
  _, sound = train(shares)
  # Client 1 fails with the second center alone.
  new, trained = train(shares.at[1, 1].set(jnp.nan))
  assert trained.steps.tolist() == [4, 2, 4]
  assert trained.finite.tolist() == [True, False, True]
  assert trained.ids.tolist() == [0, 1, 2]
  assert trained.sizes.tolist() == [4, 1, 3]
  # It is left out of that center's mean alone.
  alone, _ = train(shares.at[1].set(0.0).at[1, 1].set(jnp.nan))
  assert_close(matrix(new)[1], matrix(alone)[1])
  assert np.abs(matrix(new)[0] - matrix(alone)[0]).max() > 1e-3
  assert_close(trained.loss[np.array([0, 2])], sound.loss[np.array([0, 2])])
  assert np.isfinite(matrix(new)).all()


# FedRC.


def test_classes_of_a_center_have_shares_of_its_examples():
  # Also of less than one example, and none of a center that has none.
  sums = jnp.array(
    [[[0.25, 0.0], [3.0, 0.0], [0.0, 0.0]]] + [[[0.0, 0.5], [0, 0], [0, 0]]]
  )
  want = [[1 / 3, 2 / 3], [1, 1e-8], [1e-8, 1e-8]]
  np.testing.assert_allclose(shares_of_classes(sums), want, rtol=1e-6)


# FedSoft.


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
  result = built().deployed(state, data).clusters()
  assert adjusted_rand_score(groups, result) == 1.0
  assert {int(info.trained) for info in infos} == {20}


def test_many_pulls_are_one_to_their_weighted_mean():
  centers = {'w': np.array([[1.0, 2.0], [5.0, -2.0]], np.float32)}
  # The last client, such as padding, is pulled nowhere.
  pulls = np.array([[1, 3], [2, 0], [0.25, 0.25], [0, 0]], np.float32)
  anchor, factors = pull_to_all(centers, pulls, 0.5)
  np.testing.assert_allclose(factors, [1, 0.5, 0.125, 0])
  np.testing.assert_allclose(anchor['w'], [[4, -1], [1, 2], [3, 0], [0, 0]])
  assert pull_to_all(centers, pulls, 0) is None
