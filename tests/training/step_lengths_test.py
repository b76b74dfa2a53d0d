"""How far local steps lead along a gradient of 1."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.core.types import Model
from fesem_jax.training import step_lengths
from tests.support import helpers


def local(optimizer):
  return helpers.local(optimizer=optimizer)


@pytest.mark.parametrize(
  'optimizer', [optax.sgd(0.1), optax.sgd(0.1, momentum=0.9, nesterov=True)]
)
def test_sgd_with_or_without_momentum_adds_up_gradients(optimizer):
  step_lengths.check_sums_of_gradients(local(optimizer))


def test_a_step_of_no_length_does_not_hide_those_beside_it():
  scheduled = local(optax.sgd(0.1))._replace(local_lr_schedule=lambda t: 1.0 * (t != 1))
  step_lengths.check_sums_of_gradients(scheduled)


def test_a_model_of_one_array_tells_the_length_of_its_steps():
  model = Model(lambda key: {'w': jnp.zeros(3)}, lambda params, x: params['w'] * x)
  found = step_lengths.lengths(local(optax.sgd(0.25))._replace(model=model), 2)
  np.testing.assert_allclose(found, [0, 0.25, 0.5], rtol=1e-6)
