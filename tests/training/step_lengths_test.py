"""How far local steps lead along a gradient of 1."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.core.types import Model
from fesem_jax.training import step_lengths
from fesem_jax.utils.errors import UserError
from tests.support import helpers


def local(optimizer):
  return helpers.local(optimizer=optimizer)


def test_steps_of_sgd_are_as_long_as_each_other():
  found = step_lengths.of_steps(local(optax.sgd(0.25)), 4)
  np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 1.0], rtol=1e-6)


def test_momentum_lengthens_later_steps():
  found = step_lengths.of_steps(local(optax.sgd(1.0, momentum=0.5)), 3)
  np.testing.assert_allclose(found, [0, 1, 1 + 1.5, 1 + 1.5 + 1.75], rtol=1e-6)


def test_a_schedule_of_local_steps_shortens_them():
  scheduled = local(optax.sgd(1.0))._replace(local_lr_schedule=lambda t: 0.5**t)
  found = step_lengths.of_steps(scheduled, 3)
  np.testing.assert_allclose(found, [0, 1, 1.5, 1.75], rtol=1e-6)


def kernels_only(params):
  return {n: {'kernel': True, 'bias': False} for n in params}


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    optax.chain(optax.masked(optax.scale(2.0), kernels_only), optax.sgd(0.1)),
    optax.scale(0.1),  # Ascends.
    optax.sgd(0.0),
  ],
)
def test_what_does_not_add_up_gradients_alike_is_refused(optimizer):
  with pytest.raises(
    UserError, match='must be SGD of one learning rate, with or witho'
  ):
    step_lengths.check_sums_of_gradients(local(optimizer))


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
  found = step_lengths.of_steps(local(optax.sgd(0.25))._replace(model=model), 2)
  np.testing.assert_allclose(found, [0, 0.25, 0.5], rtol=1e-6)
