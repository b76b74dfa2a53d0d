"""HypoCluster against float64."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
  run,
  unflatten,
)


def test_no_client_prefers_a_center_that_gives_no_number():
  data, local = federation(), helpers.local(hidden=())
  algorithm = algorithms.build('hypo_cluster', local, num_clusters=2, init_restarts=3)
  state = initial(algorithm, data)
  broken = jax.tree.map(lambda c: c.at[1].set(jnp.nan), state.centers)
  state, info = jax.jit(algorithm.step)(
    state._replace(centers=broken), data, helpers.everyone(data), jax.random.key(1)
  )
  assert not state.assignment.any()
  assert int(info.trained) == 6


def test_hypo_cluster_matches_float64_reference():
  # The mean over all of a cluster's clients: public code applies only the first.
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, weighting='by_examples', init_restarts=3
  )
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    losses = reference.losses(centers, data, range(6))
    best = losses.argmin(axis=1)
    trained = reference_round(local, data, [centers[k] for k in best], range(6), key)
    points = np.stack([reference.flat(w) for w in trained])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, best, np.array(SIZES), old)
    centers = [unflatten(c, centers[0]) for c in new]
  state, _ = run(algorithm, data)
  np.testing.assert_array_equal(state.assignment, best)
  assert np.bincount(best).max() > 1
  for k in (0, 1):
    got = reference.flat(reference.from_params(state.centers, k))
    assert_close(got, reference.flat(centers[k]), rtol=1e-3)


def test_no_client_drops_out_before_the_first_round():
  data, found = helpers.federation([3, 2, 4, 2]), []
  for rate in (0.0, 0.99):
    local = helpers.local(hidden=())._replace(dropout_rate=rate)
    algorithm = algorithms.build(
      'hypo_cluster', local, num_clusters=2, init_restarts=1, init_rounds=1
    )
    found.append(matrix(initial(algorithm, data).centers))
  np.testing.assert_array_equal(*found)
