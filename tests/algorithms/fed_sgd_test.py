"""FedSGD against float64, and optimizers that it allows."""

import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_gradient,
  run,
  unflatten,
)
from tests.support.nights import rest_by_night


def test_a_round_is_a_gradient_step_of_the_float64_reference():
  data = federation()
  algorithm = algorithms.build('fed_sgd', helpers.local())
  model = reference.from_params(initial(algorithm, data).params, 0)
  alpha = np.array(SIZES) / sum(SIZES)
  for _ in range(3):
    g = sum(a * reference_gradient(model, data, i) for i, a in enumerate(alpha))
    model = unflatten(reference.flat(model) - 0.1 * g, model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


@pytest.mark.parametrize('name', rest_by_night(['fed_sgd', 'hypo_cluster']))
@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.adam(1e-9),
    optax.adamw(0.1),
    # Short gradients are not clipped.
    optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(0.1)),
    # Of one layer alone.
    optax.partition(
      {'sgd': optax.sgd(0.1), 'adam': optax.adam(0.1)},
      {'dense0': 'sgd', 'logits': 'adam'},
    ),
  ],
)
def test_a_gradient_step_needs_an_optimizer_that_follows_the_gradient(name, optimizer):
  local = helpers.local(optimizer=optimizer)
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build(name, local)
  for follows in (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9)):
    algorithms.build(name, helpers.local(optimizer=follows))
