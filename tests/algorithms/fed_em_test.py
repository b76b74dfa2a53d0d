"""FedEM against float64, and the groups that it finds."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common import learners
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.learners import assert_matches, em_round
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
)


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
