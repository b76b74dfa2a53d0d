"""FedEM against float64, and the groups that it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common import learners
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.learners import assert_matches, em_round
from tests.support.methods import SIZES, assert_close, federation, initial, matrix


@pytest.mark.parametrize('weighting', ['by_examples', 'uniform'])
def test_fed_em_matches_float64_reference(weighting):
  # Algorithm 1: a cohort of four of the six clients, others keep their pi.
  data, local = federation(), helpers.local(batch_size=3)
  algorithm = algorithms.build('fed_em', local, num_clusters=2, weighting=weighting)
  cohorts = [np.array(ids) for ids in ([4, 1, 0, 5], [2, 1, 3, 5], [4, 0, 3, 2])]
  step, state = jax.jit(algorithm.step), initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  mixture = np.full((6, 2), 0.5)
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  for r, ids in enumerate(cohorts):
    key = jax.random.fold_in(jax.random.key(9), r)

    def likelihoods(i, y, losses):
      del i, y
      return -losses

    centers, shares, loss = em_round(
      local, data, ids, key, (centers, mixture, weights), likelihoods
    )
    for i, q in shares.items():
      mixture[i] = q.mean(axis=1)
    state, info = step(state, data, Cohort(ids.astype(np.int32), everyone=False), key)
    assert_close(info.train_loss, loss, rtol=1e-3)
    assert_matches(state, centers, mixture)
  assert np.ptp(mixture, axis=1).max() > 0.1


def test_mixtures_are_means_over_examples_that_exist():
  # Of one, two and no examples; what stands behind them does not count.
  data = FederatedData.from_arrays(
    np.zeros((3, 2), np.float32), np.zeros(3, int), [1, 2, 0], num_classes=2
  )
  shares = np.full((3, 2, 2), np.nan, np.float32)
  shares[0, :, 0], shares[1] = [0.25, 0.75], [[0.5, 0.25], [0.5, 0.75]]
  found = learners.mixture_of(shares, data, helpers.everyone(data))
  np.testing.assert_allclose(found, [[0.25, 0.75], [0.375, 0.625], [0, 0]])


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
