"""FedAvg against float64."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
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


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_fed_avg_matches_float64_reference(weighting):
  data, local = helpers.federation(SIZES), helpers.local(epochs=2)
  algorithm = algorithms.build('fed_avg', local, weighting=weighting)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(len(SIZES))
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    trained = reference_round(local, data, [model] * 6, range(6), key)
    mean = np.average([reference.flat(w) for w in trained], axis=0, weights=weights)
    model = unflatten(mean, model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


def test_one_full_batch_step_of_fed_avg_is_a_gradient_step():
  data = federation()
  algorithm = algorithms.build('fed_avg', helpers.local(batch_size=0, steps=1))
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  alpha = np.array(SIZES) / sum(SIZES)
  step = jax.jit(algorithm.step)
  for r in range(2):
    g = sum(a * reference_gradient(model, data, i) for i, a in enumerate(alpha))
    model = unflatten(reference.flat(model) - 0.1 * g, model)
    state, _ = step(state, data, helpers.everyone(data), jax.random.key(r))
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)
