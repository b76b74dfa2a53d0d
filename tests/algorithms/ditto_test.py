"""Ditto against Li et al.'s Algorithm 1, and its limits."""

import chex
import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.training.trained import Reduction
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
  run,
  run_cohorts,
  unflatten,
)


def pulled_sgd(model, batches, rate, pull, anchor):
  """SGD on F + pull / 2 |v - anchor|^2, the anchor not the start."""
  v, w = reference.flat(model), reference.flat(anchor)
  for x, y in batches:
    _, gradient = reference.loss_and_gradient(unflatten(v, model), x, y)
    v = v - rate * (reference.flat(gradient) + pull * (v - w))
  return v


def test_matches_float64_reference():
  cohorts = [(0, 3), (3, 4), (1, 0)]
  data, local = federation(), helpers.local(epochs=2, devices=2)
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  model = reference.from_params(initial(algorithm, data).params, 0)
  own = [reference.flat(model)] * len(SIZES)
  w = model
  for number, cohort in enumerate(cohorts, 1):
    key = jax.random.fold_in(jax.random.key(9), number)
    trained = reference_round(local, data, [w] * len(cohort), cohort, key)
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      own[i] = pulled_sgd(unflatten(own[i], model), batches, 0.1, 0.7, w)
    weights = np.array(SIZES)[list(cohort)]
    mean = np.average([reference.flat(t) for t in trained], axis=0, weights=weights)
    w = unflatten(mean, model)

  state, infos = run_cohorts(algorithm, data, cohorts)

  def flat(stack, i):
    return reference.flat(reference.from_params(stack, i))

  assert_close(flat(state.params, 0), reference.flat(w), rtol=1e-3)
  for i in range(len(SIZES)):
    assert_close(flat(state.client_params, i), own[i], rtol=1e-3)
  used = algorithm.deployed(state, data)
  chex.assert_trees_all_equal(used.own, state.client_params)
  batches = [len(helpers.batches(data, local.schedule, i, key)) for i in cohorts[-1]]
  assert int(infos[-1].steps) == 2 * sum(batches)  # Both models train.


def test_replayed_training_is_that_of_the_models_which_clients_keep():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  state, _ = run(algorithm, data, rounds=2)  # Whose two models differ.
  everyone, key = helpers.everyone(data), jax.random.key(5)
  after, _ = jax.jit(algorithm.step)(state, data, everyone, key)
  train = jax.jit(lambda s: algorithm.train(local, s, data, everyone, key, Reduction()))
  trained = matrix(train(state).params)
  assert_close(trained, matrix(after.client_params), rtol=1e-5, atol=1e-6)
