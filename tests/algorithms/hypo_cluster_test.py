"""HypoCluster against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_gradient,
  reference_round,
  run,
  unflatten,
)


def test_no_client_prefers_a_center_that_gives_no_number():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('hypo_cluster', local, num_clusters=2, init_restarts=3)
  state = initial(algorithm, data)
  broken = jax.tree.map(lambda c: c.at[1].set(jnp.nan), state.centers)
  state, info = jax.jit(algorithm.step)(
    state._replace(centers=broken), data, helpers.everyone(data), jax.random.key(1)
  )
  assert not state.assignment.any()
  assert int(info.trained) == 6


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_gradients_of_a_cluster_are_divided_by_all_clients_of_the_round(weighting):
  # Option I of IFCA's Algorithm 1, in float64.
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'hypo_cluster',
    local,
    num_clusters=2,
    variant='gradient',
    weighting=weighting,
    init_restarts=5,
    init_rounds=0,
  )
  state = initial(algorithm, data)
  like = reference.from_params(state.centers, 0)
  centers = [reference.flat(reference.from_params(state.centers, k)) for k in (0, 1)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  ids = np.array([4, 1, 0, 5])
  for _ in (1, 2, 3):
    models = [unflatten(c, like) for c in centers]
    losses = [
      [reference.loss_and_gradient(model, *data.client(i))[0] for model in models]
      for i in ids
    ]
    best = np.argmin(losses, axis=1)
    for k, model in enumerate(models):
      mine = ids[best == k]
      total = sum(weights[i] * reference_gradient(model, data, i) for i in mine)
      centers[k] = centers[k] - 0.1 * total / weights[ids].sum()
  cohort = Cohort(jnp.asarray(ids, jnp.int32), everyone=False)
  got, _ = run(algorithm, data, cohort=lambda r: cohort)
  np.testing.assert_array_equal(got.assignment[ids], best)
  assert np.bincount(best, minlength=2).min() > 0
  for k in (0, 1):
    moved = reference.flat(reference.from_params(got.centers, k))
    assert_close(moved, centers[k], rtol=1e-3)


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_hypo_cluster_matches_float64_reference(weighting):
  # The mean over all of a cluster's clients: public code applies only the first.
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, weighting=weighting, init_restarts=3
  )
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    losses = np.array(
      [
        [reference.loss_and_gradient(c, *data.client(i))[0] for c in centers]
        for i in range(6)
      ]
    )
    best = losses.argmin(axis=1)
    trained = reference_round(local, data, [centers[k] for k in best], range(6), key)
    points = np.stack([reference.flat(w) for w in trained])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, best, weights, old)
    centers = [unflatten(c, centers[0]) for c in new]
  state, _ = run(algorithm, data)
  np.testing.assert_array_equal(state.assignment, best)
  assert np.bincount(best).max() > 1
  for k in (0, 1):
    got = reference.flat(reference.from_params(state.centers, k))
    assert_close(got, reference.flat(centers[k]), rtol=1e-3)
