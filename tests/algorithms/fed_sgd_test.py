"""Optimizers that FedSGD allows."""

import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.utils.errors import UserError
from tests.support import helpers


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.adam(1e-9),
    optax.adamw(0.1),
    # Short gradients are not clipped.
    optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(0.1)),
    local_optimizer('sgd', 0.1, weight_decay=1e-9),
    # Of one layer alone.
    optax.partition(
      {'sgd': optax.sgd(0.1), 'adam': optax.adam(0.1)},
      {'dense0': 'sgd', 'logits': 'adam'},
    ),
  ],
)
def test_a_gradient_step_needs_an_optimizer_that_follows_the_gradient(optimizer):
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('fed_sgd', helpers.local(optimizer=optimizer))


@pytest.mark.parametrize('optimizer', [
    optax.sgd(0.1),
    optax.sgd(0.1, momentum=0.9, nesterov=True),
    optax.sgd(optax.cosine_decay_schedule(0.1, 9)),
    optax.masked(optax.sgd(0.1), lambda p: {name: name != 'logits' for name in p}),
])  # fmt: skip
def test_first_steps_that_are_linear_are_gradient_steps(optimizer):
  local = helpers.local(optimizer=optimizer)
  assert algorithms.build('fed_sgd', local).local is local
