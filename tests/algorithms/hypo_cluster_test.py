"""HypoCluster against float64."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from fesem_jax.algorithms.hypo_cluster import HypoClusterState
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.server import optimizers as server_optimizers
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_gradient,
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


def test_gradients_of_a_cluster_are_divided_by_all_clients_of_the_round():
  # Option I of IFCA's Algorithm 1, in float64.
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, variant='gradient', weighting='by_examples',
    init_restarts=5, init_rounds=0,
  )  # fmt: skip
  state = initial(algorithm, data)
  like = reference.from_params(state.centers, 0)
  centers = [reference.flat(reference.from_params(state.centers, k)) for k in (0, 1)]
  weights = np.array(SIZES)
  ids = np.array([4, 1, 0, 5])
  for _ in (1, 2, 3):
    models = [unflatten(c, like) for c in centers]
    losses = reference.losses(models, data, ids)
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


def three_centers():
  """Centers that each say their class, and a federation that fits two of them.

  Client 2 alone is of class 1, and no client of class 2.
  """
  x, y = np.zeros((7, *helpers.SHAPE), np.float32), [0] * 5 + [1] * 2
  data = FederatedData.from_arrays(x, y, [3, 2, 2], num_classes=3)
  shape = 3, *helpers.SHAPE, 3
  return data, {'logits': {'kernel': jnp.zeros(shape), 'bias': 2.0 * jnp.eye(3)}}


def test_a_step_of_gradients_moves_centers_of_one_client_and_none_without():
  local, optimizer = helpers.local(hidden=()), server_optimizers.momentum(1.0, 0.5)
  data, centers = three_centers()
  algorithm = algorithms.build(
    'hypo_cluster',
    local,
    num_clusters=3,
    variant='gradient',
    server_optimizer=optimizer,
  )
  server = jax.tree.map(
    lambda c: jnp.full_like(c, 0.25), server_optimizers.init(optimizer, centers)
  )
  own = jnp.zeros(3, jnp.int32)
  state = HypoClusterState(centers, own, jnp.int32(0), server)
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  assert after.assignment.tolist() == [0, 0, 1]
  # All of a cluster's examples are of its class: gradient p - y, of softmax p.
  p = np.exp([2.0, 0.0, 0.0]) / (np.exp(2.0) + 2)
  slope = p - [1, 0, 0]
  bias = np.asarray(after.centers['logits']['bias'], np.float64)
  # Momentum 0.5 * 0.25 comes before the step along two, and one, of three clients.
  first = np.array([2.0, 0, 0]) - 0.1 * slope * 2 / 3 - 0.125
  second = np.array([2.0, 0, 0]) - 0.1 * slope / 3 - 0.125
  assert_close(bias[0], first)
  assert_close(bias[1], second[[1, 0, 2]])
  np.testing.assert_array_equal(bias[2], centers['logits']['bias'][2])
  for x in jax.tree.leaves(after.server):
    np.testing.assert_array_equal(x[2], 0.25)


def test_no_client_drops_out_before_the_first_round():
  data, found = helpers.federation([3, 2, 4, 2]), []
  for rate in (0.0, 0.99):
    local = helpers.local(hidden=())._replace(dropout_rate=rate)
    algorithm = algorithms.build(
      'hypo_cluster', local, num_clusters=2, init_restarts=1, init_rounds=1
    )
    found.append(matrix(initial(algorithm, data).centers))
  np.testing.assert_array_equal(*found)
