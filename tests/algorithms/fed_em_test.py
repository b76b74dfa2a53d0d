"""FedEM against float64, and the groups that it finds."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common import learners
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core.federated_data import FederatedData
from tests.support import helpers
from tests.support.methods import assert_close, matrix


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
