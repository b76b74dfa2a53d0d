"""FedRC against float64, and the groups that it finds."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_rc import shares_of_classes
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.learners import assert_matches, em_round
from tests.support.methods import SIZES, assert_close, federation, initial


def test_fed_rc_matches_float64_reference():
  data, local = federation(), helpers.local(batch_size=3)
  algorithm = algorithms.build('fed_rc', local, num_clusters=2)
  cohorts = [np.array(ids) for ids in ([4, 1, 0, 5], [2, 1, 3, 5], [4, 0, 3, 2])]
  step, state = jax.jit(algorithm.step), initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  mixture, classes = np.full((6, 2), 0.5), np.zeros((6, 2, 3))
  for r, ids in enumerate(cohorts):
    key = jax.random.fold_in(jax.random.key(9), r)
    total = classes.sum(axis=0)
    share = np.maximum(
      total / np.maximum(total.sum(axis=1, keepdims=True), 1e-30), 1e-8
    )

    def likelihoods(i, y, losses, share=share):
      del i
      return -losses - np.log(share[:, y])

    centers, shares, loss = em_round(
      local, data, ids, key, (centers, mixture, np.array(SIZES)), likelihoods
    )
    for i, q in shares.items():
      mixture[i] = q.mean(axis=1)
      y = data.client(i)[1]
      classes[i] = [[own[y == c].sum() for c in range(3)] for own in q]
    state, info = step(state, data, Cohort(ids.astype(np.int32), everyone=False), key)
    assert_close(info.train_loss, loss, rtol=1e-3)
    assert_matches(state, centers, mixture)
    assert_close(state.classes, classes, rtol=1e-3)
  assert np.ptp(share, axis=0).max() > 0.02  # The divisor differs between centers.


def test_classes_of_a_center_have_shares_of_its_examples():
  # Also of less than one example, and none of a center that has none.
  sums = jnp.array(
    [[[0.25, 0.0], [3.0, 0.0], [0.0, 0.0]]] + [[[0.0, 0.5], [0, 0], [0, 0]]]
  )
  want = [[1 / 3, 2 / 3], [1, 1e-8], [1e-8, 1e-8]]
  np.testing.assert_allclose(shares_of_classes(sums), want, rtol=1e-6)
