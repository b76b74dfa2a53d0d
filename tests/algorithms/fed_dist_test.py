"""FedAvg, FedDist, FedDWS and FedProx against float64."""

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
  reference_round,
  run,
  unflatten,
)


@pytest.mark.parametrize(
  ('name', 'options', 'weights', 'prox', 'epsilon'),
  [
    ('fed_avg', {'weighting': 'uniform'}, [1] * 6, 0.0, 1.0),
    ('fed_avg', {}, SIZES, 0.0, 1.0),
    ('fed_prox', {'prox_mu': 0.8}, SIZES, 0.4, 1.0),
    ('fed_dist', {'server_learning_rate': 0.3}, [1] * 6, 0.0, 0.3),
    ('fed_dws', {'server_learning_rate': 0.3}, SIZES, 0.0, 0.3),
  ],
)
def test_single_model_methods_match_float64_reference(
  name, options, weights, prox, epsilon
):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(name, local, **options)
  model = reference.from_params(initial(algorithm, data).params, 0)
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    trained = reference_round(local, data, [model] * 6, range(6), key, np.full(6, prox))
    mean = np.average([reference.flat(w) for w in trained], axis=0, weights=weights)
    c = reference.flat(model)
    model = unflatten(c + epsilon * (mean - c), model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)
