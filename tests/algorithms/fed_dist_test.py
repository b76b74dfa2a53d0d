"""FedAvg, FedDist, FedDWS and FedProx against float64."""

import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds, sgd_like
from tests.support.methods import assert_close, federation, initial, run


@pytest.mark.parametrize(
  ('name', 'options', 'weighting', 'prox', 'epsilon'),
  [
    ('fed_avg', {'weighting': 'uniform'}, 'uniform', 0.0, 1.0),
    ('fed_avg', {}, 'by_examples', 0.0, 1.0),
    ('fed_prox', {'prox_mu': 0.8}, 'by_examples', 0.4, 1.0),
    ('fed_dist', {'server_learning_rate': 0.3}, 'uniform', 0.0, 0.3),
    ('fed_dws', {'server_learning_rate': 0.3}, 'by_examples', 0.0, 0.3),
  ],
)
def test_single_model_methods_match_float64_reference(
  name, options, weighting, prox, epsilon
):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(name, local, **options)
  model = reference.from_params(initial(algorithm, data).params, 0)
  x, train = reference.flat(model), sgd_like(model, prox)
  x, *_ = averaged_rounds(
    local, data, x, [range(6)] * 3, train, weighting,
    lambda c, mean: c + epsilon * (mean - c),
  )  # fmt: skip
  state, _ = run(algorithm, data)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)
