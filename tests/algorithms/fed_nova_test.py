"""FedNova against Wang et al.'s equations in float64, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common import stragglers
from fesem_jax.training import step_lengths
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.utils.errors import UserError
from tests.support import draws, helpers
from tests.support.methods import (
  assert_close,
  federation,
  run,
)

RATE = 0.1


def norm(steps, rho):
  """|a_i|_1 of the paper, Section 4."""
  if rho == 0:
    return steps
  return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def test_stragglers_are_those_of_fed_prox():
  data, local = federation(), helpers.local(epochs=4, hidden=())
  (_, nova), (_, prox) = (
    run(algorithms.build(name, local, straggler_fraction=0.5), data, rounds=2)
    for name in ('fed_nova', 'fed_prox')
  )
  assert [int(i.steps) for i in nova] == [int(i.steps) for i in prox]
  assert int(nova[0].steps) != int(nova[1].steps)


def test_where_all_straggle_each_draws_its_epochs_and_where_none_does_all_are_done():
  data, local, key = federation(), helpers.local(epochs=4), jax.random.key(7)
  everyone = helpers.everyone(data)
  found = stragglers.epochs(local, data, everyone, key, 1.0)
  assert found.tolist() == [draws.epochs_of(key, data, i, 1.0, 4) for i in range(6)]
  assert stragglers.epochs(local, data, everyone, key, 0.0) is None


def test_lengths_of_steps_are_those_of_the_paper():
  local = helpers.local(optimizer=optax.sgd(RATE, 0.6))
  wanted = [RATE * norm(steps, 0.6) for steps in range(6)]
  assert_close(step_lengths.lengths(local, 5), wanted, rtol=1e-6)
  local = helpers.local()._replace(local_lr_schedule=lambda step: 1.0 / (step + 1))
  wanted = RATE * np.array([0, 1, 1 + 1 / 2, 1 + 1 / 2 + 1 / 3])
  assert_close(step_lengths.lengths(local, 3), wanted, rtol=1e-6)
  nesterov = helpers.local(optimizer=optax.sgd(RATE, 0.5, nesterov=True))
  wanted = RATE * np.array([0, 1.5, 1.5 + 1.75])  # g + rho v, v = g, then 1.5 g.
  assert_close(step_lengths.lengths(nesterov, 2), wanted, rtol=1e-6)


def biases_only(params):
  return jax.tree.map(lambda x: jnp.ndim(x) == 1, params)


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.sgd(0.0),
    optax.sgd(optax.cosine_decay_schedule(0.1, 10), 0.9),
    local_optimizer('momentum', 0.1, weight_decay=0.01),
    local_optimizer('sgd', 0.1, clip_norm=1.0),
    optax.chain(optax.masked(optax.scale(0.5), biases_only), optax.sgd(0.1)),
  ],
  ids=['adam', 'zero', 'schedule', 'decay', 'clipping', 'layers'],
)
def test_steps_must_add_up_gradients(optimizer):
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('fed_nova', helpers.local(optimizer=optimizer))
