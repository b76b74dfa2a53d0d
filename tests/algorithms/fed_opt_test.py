"""FedOpt: the server's optimizers against Reddi et al.'s Algorithm 2."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common import global_model
from fesem_jax.core import sums
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server import robust
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds, sgd_like
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_training,
  run,
)

RATE, BETA1, BETA2, TAU = 0.3, 0.8, 0.9, 0.05
OPTIMIZERS = {
  'momentum': server_optimizers.momentum(RATE, BETA1),
  'adagrad': server_optimizers.adagrad(RATE, BETA1, TAU),
  'adam': server_optimizers.adam(RATE, BETA1, BETA2, TAU),
  'yogi': server_optimizers.yogi(RATE, BETA1, BETA2, TAU),
}


class Reference:
  """The server's step in float64, written from the paper."""

  def __init__(self, name, size):
    self.name, self.m, self.v = name, np.zeros(size), np.full(size, TAU**2)

  def step(self, x, delta):
    if self.name == 'momentum':
      self.m = BETA1 * self.m + delta
      return x + RATE * self.m
    self.m = BETA1 * self.m + (1 - BETA1) * delta
    square = delta**2
    self.v = {
      'adagrad': self.v + square,
      'adam': BETA2 * self.v + (1 - BETA2) * square,
      'yogi': self.v - (1 - BETA2) * square * np.sign(self.v - square),
    }[self.name]
    return x + RATE * self.m / (np.sqrt(self.v) + TAU)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_one_model_matches_float64_reference(name):
  data, local = helpers.federation(SIZES), helpers.local(epochs=2)
  algorithm = algorithms.build('fed_opt', local, server_optimizer=OPTIMIZERS[name])
  model = reference.from_params(initial(algorithm, data).params, 0)
  x = reference.flat(model)
  optimizer = Reference(name, x.size)
  x, *_ = averaged_rounds(
    local, data, x, [range(6)] * 4, sgd_like(model), 'by_examples',
    lambda x, mean: optimizer.step(x, mean - x),
  )  # fmt: skip
  state, _ = run(algorithm, data, rounds=4)
  assert_close(reference.flat(reference.from_params(state.params, 0)), x, rtol=1e-3)


def test_centers_of_fesem_match_float64_reference():
  name = 'yogi'
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, prox_lambda=0.2, server_optimizer=OPTIMIZERS[name]
  )
  state = initial(algorithm, data)
  like = reference.from_params(state.centers, 0)
  centers, assignment = reference.vectors(state.centers), np.asarray(state.assignment)
  optimizers = [Reference(name, centers.shape[1]) for _ in range(2)]
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    train = reference_training(local, data, like, key, np.full(6, 0.2))
    models, assignment, means = reference.fesem_round(
      train, centers, assignment, np.ones(6)
    )
    for k in (0, 1):
      if (assignment == k).any():
        centers[k] = optimizers[k].step(centers[k], means[k] - centers[k])
  state, infos = run(algorithm, data, rounds=3)
  np.testing.assert_array_equal(state.assignment, assignment)
  assert_close(reference.vectors(state.centers), centers, 1e-3)
  # Eq. 6 is about the centers as they are after the server's step.
  want = reference.objective(models, centers, assignment)
  assert_close(infos[-1].clusters.objective, want, rtol=1e-3)


def moved_by(averaging, weight=1.0, finite=(True, True, True)):
  """The model 1 after a round of momentum 8 whose clients have models 3, 5 and 9."""
  trained = helpers.trained(
    {'w': jnp.array([[3.0], [5.0], [9.0]])},
    finite=jnp.array(finite),
    sums=sums.ClusterSums({'w': jnp.array([[2.0 * weight]])}, jnp.array([weight])),
  )
  state = global_model.GlobalState(
    {'w': jnp.ones((1, 1))},
    (optax.TraceState({'w': jnp.full((1, 1), 8.0)}), optax.EmptyState()),
  )
  after, _ = global_model.train_and_average(
    helpers.local(), state, None, None, None, averaging, lambda *args: trained
  )
  return float(after.params['w'][0, 0])


def test_one_client_is_enough_for_a_step_of_the_server_and_none_is_not():
  averaging = global_model.Averaging('uniform', optax.sgd(1.0, momentum=0.5))
  # 1 - (0.5 * 8 - 2), where the mean is 3.
  assert moved_by(averaging) == -1
  assert moved_by(averaging, weight=0.0) == 1
  # By the median of two models where one client failed: 1 - (0.5 * 8 - 3).
  median = averaging._replace(aggregation=robust.aggregation('median'))
  assert moved_by(median, finite=(True, True, False)) == 0
  assert moved_by(median, finite=(False, False, False)) == 1


def test_a_round_in_which_all_drop_out_changes_nothing():
  data, local, optimizer = federation(), helpers.local(hidden=()), OPTIMIZERS['yogi']
  algorithm = algorithms.build('fed_opt', local, server_optimizer=optimizer)
  state, _ = run(algorithm, data, rounds=2)
  all_drop_out = algorithms.build(
    'fed_opt', local._replace(dropout_rate=1.0), server_optimizer=optimizer
  )
  after, info = jax.jit(all_drop_out.step)(
    state, data, helpers.everyone(data), jax.random.key(5)
  )
  assert int(info.trained) == 0
  chex.assert_trees_all_equal(state, after)
