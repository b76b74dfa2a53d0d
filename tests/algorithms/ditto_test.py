"""Ditto against Li et al.'s Algorithm 1, and its limits."""

import jax

from fesem_jax import algorithms
from fesem_jax.training.trained import Reduction
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  federation,
  matrix,
  run,
)


def test_training_alone_gives_the_models_that_clients_keep():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  state, _ = run(algorithm, data, rounds=2)  # Whose two models differ.
  everyone, key = helpers.everyone(data), jax.random.key(5)
  after, _ = jax.jit(algorithm.step)(state, data, everyone, key)
  train = jax.jit(lambda s: algorithm.train(local, s, data, everyone, key, Reduction()))
  trained = matrix(train(state).params)
  assert_close(trained, matrix(after.client_params), rtol=1e-5, atol=1e-6)
