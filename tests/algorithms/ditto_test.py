"""Ditto against Li et al.'s Algorithm 1, and its limits."""

import chex
import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.training.trained import Reduction
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds, sgd_like
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
  run_cohorts,
  unflatten,
)


def pulled_sgd(v, w, like, batches, rate, pull):
  """SGD on F + pull / 2 |v - w|^2, where w is not the start."""
  for x, y in batches:
    _, gradient = reference.loss_and_gradient(unflatten(v, like), x, y)
    v = v - rate * (reference.flat(gradient) + pull * (v - w))
  return v


def test_matches_float64_reference():
  cohorts = [(0, 3), (3, 4), (1, 0)]
  data, local = federation(), helpers.local(epochs=2, devices=2)
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  model = reference.from_params(initial(algorithm, data).params, 0)
  w = reference.flat(model)
  own = [w] * len(SIZES)

  def train(i, w, batches):
    own[i] = pulled_sgd(own[i], w, model, batches(), 0.1, 0.7)
    return sgd_like(model)(i, w, batches)

  w, _, steps = averaged_rounds(local, data, w, cohorts, train)

  state, infos = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], w, rtol=1e-3)
  assert_close(reference.vectors(state.client_params), np.stack(own), rtol=1e-3)
  used = algorithm.deployed(state, data)
  chex.assert_trees_all_equal(used.own, state.client_params)
  assert int(infos[-1].steps) == 2 * steps  # Both models train.


def test_training_alone_gives_the_models_that_clients_keep():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  state, _ = run(algorithm, data, rounds=2)  # Whose two models differ.
  everyone, key = helpers.everyone(data), jax.random.key(5)
  after, _ = jax.jit(algorithm.step)(state, data, everyone, key)
  train = jax.jit(lambda s: algorithm.train(local, s, data, everyone, key, Reduction()))
  trained = matrix(train(state).params)
  assert_close(trained, matrix(after.client_params), rtol=1e-5, atol=1e-6)
