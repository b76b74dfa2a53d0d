"""L2GD against Hanzely and Richtarik's Algorithm 1 in float64, and its limits."""

import dataclasses

import jax
import numpy as np

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  initial,
  matrix,
)


def apart(state, moves):
  """The state before a round of aggregation, with each client's parameters moved."""

  def moved(x):
    return x + np.array(moves, np.float32).reshape(-1, *[1] * (x.ndim - 1))

  own = jax.tree.map(moved, state.client_params)
  return state._replace(client_params=own, aggregates=np.bool_(True))


def test_a_client_without_examples_has_no_part_in_the_mean_however_far_it_is():
  data, local = helpers.federation([3, 0, 4]), helpers.local()
  algorithm = algorithms.build(
    'l2gd', local, l2gd_lambda=10.0, aggregation_probability=0.5
  )
  state = apart(initial(algorithm, data), [0.0, 1e20, 1.0])
  after, info = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(3)
  )
  old, new = matrix(state.client_params), matrix(after.client_params)
  assert_close(new[[0, 2]], [old[[0, 2]].mean(axis=0)] * 2, rtol=1e-5)
  np.testing.assert_array_equal(new[1], old[1])
  assert int(info.trained) == 2


def test_a_scheduled_rate_shortens_the_step_to_the_mean():
  # A whole step to the mean, times 0.25.
  data = helpers.federation([3, 2, 4])
  local = helpers.local()._replace(lr_schedule=lambda number: 0.5**number)
  algorithm = algorithms.build(
    'l2gd', local, l2gd_lambda=10.0, aggregation_probability=0.5
  )
  state = apart(initial(algorithm, data), [0.0, 1.0, 5.0])
  cohort = dataclasses.replace(helpers.everyone(data), round=np.int32(2))
  after, _ = jax.jit(algorithm.step)(state, data, cohort, jax.random.key(3))
  old = matrix(state.client_params)
  assert_close(matrix(after.client_params), 0.75 * old + 0.25 * old.mean(axis=0))


def test_a_step_may_reach_the_mean_of_the_models():
  algorithms.build('l2gd', helpers.local(), l2gd_lambda=2.5 * (1 + 5e-7))  # Rounding.
