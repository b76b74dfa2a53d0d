"""LG-FedAvg against a reference whose clients keep their bodies."""

import jax
import numpy as np

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  models_after,
  unflatten,
)


def test_matches_float64_reference():
  cohorts = [(0, 3), (3, 4), (1, 0)]
  data, local = federation(), helpers.local(epochs=2, devices=2, hidden=(5, 4))
  algorithm = algorithms.build('lg_fed_avg', local)
  params = algorithm.client_params(initial(algorithm, data), data, np.arange(1))
  model = reference.from_params(params, 0)
  bodies, head = [model[:-1]] * len(SIZES), model[-1:]
  for number, cohort in enumerate(cohorts, 1):
    key, heads = jax.random.fold_in(jax.random.key(9), number), []
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      own, _ = reference.local_sgd(bodies[i] + head, batches, 0.1)
      bodies[i] = own[:-1]
      heads.append(reference.flat(own[-1:]))
    sizes = np.array(SIZES)[list(cohort)]
    head = unflatten(np.average(heads, axis=0, weights=sizes), head)

  state, found = models_after(algorithm, data, cohorts)
  for i, got in enumerate(found):
    assert_close(got, reference.flat(bodies[i] + head), rtol=1e-3)
  params = algorithm.client_params(state, data, np.arange(len(SIZES)))
  some = algorithm.client_params(state, data, np.array([2, 0]))
  jax.tree.map(
    lambda x, every: np.testing.assert_array_equal(x, every[np.array([2, 0])]),
    some,
    params,
  )
