"""FedDANE with two cohorts, each known from its draw."""

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import draws, helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  reference_gradient,
)


def test_without_a_gradient_of_the_first_cohort_nothing_is_corrected():
  data, rate = federation(), 0.5
  local = helpers.local(hidden=())._replace(dropout_rate=rate)
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  average = algorithms.build('fed_avg', local, weighting='uniform')
  cohort = Cohort(np.array([1], np.int32), everyone=False)
  for key in jax.random.split(jax.random.key(0), 100):
    (first,) = draws.first_cohort(key, data, 1)
    first_drops = draws.drops_out(key, data, first, rate)
    if first_drops and not draws.drops_out(key, data, 1, rate):
      break
  state = initial(algorithm, data)
  got, info = jax.jit(algorithm.step)(state, data, cohort, key)
  start = initial(average, data)._replace(params=state.params)
  want, _ = jax.jit(average.step)(start, data, cohort, key)
  assert int(info.trained) == 1
  jax.tree.map(np.testing.assert_allclose, got.params, want.params)


def test_one_client_in_each_cohort_is_enough_to_correct_by():
  # Of one full-batch step: c - rate * (g_2 + g_1 - g_2), g_1 of the first cohort.
  data = helpers.federation([6, 4, 1])
  local = helpers.local(batch_size=0, steps=1, hidden=())
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  key = next(
    k for k in map(jax.random.key, range(99)) if draws.first_cohort(k, data, 1) != [2]
  )
  cohort = Cohort(np.array([2], np.int32), everyone=False)
  after, _ = jax.jit(algorithm.step)(state, data, cohort, key)
  (first,) = draws.first_cohort(key, data, 1)
  want = reference.flat(model) - 0.1 * reference_gradient(model, data, first)
  assert_close(reference.flat(reference.from_params(after.params, 0)), want)
