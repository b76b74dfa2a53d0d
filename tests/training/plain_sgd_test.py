"""Which optimizers are plain SGD, and how far their steps lead."""

import inspect
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.hyperparameters import optimizer as with_variables
from fesem_jax.core.types import Model
from fesem_jax.training import shared_kernels, step_lengths
from fesem_jax.training.plain_sgd import (
  at_unit_rate,
  is_plain_sgd,
  learning_rate,
  sgd_rate,
  variable_rate,
)
from fesem_jax.utils.errors import UserError
from tests.support import helpers

MODEL = helpers.local().model
PARAMS = jax.eval_shape(MODEL.init, jax.random.key(0))


def kernels_only(params):
  return jax.tree.map(lambda x: x.ndim > 1, params)


def by_layer(first, second):
  return optax.multi_transform(
    {'first': first, 'second': second}, {'dense0': 'first', 'logits': 'second'}
  )


def late(count):
  return jnp.where(count < 5, 0.1, 0.01)


PLAIN = {
  'sgd': optax.sgd(0.1),
  'variable': with_variables(optax.sgd, 0.1),
  'array': optax.sgd(jnp.float32(0.1)),
  'chain': optax.chain(optax.scale(0.5), optax.sgd(0.2)),
  'jit': optax.GradientTransformation(
    optax.sgd(0.1).init, jax.jit(optax.sgd(0.1).update)
  ),
  'same rate for each layer': by_layer(optax.sgd(0.1), optax.sgd(0.1)),
  'division': optax.stateless(lambda g, _: jax.tree.map(lambda x: -x / 10.0, g)),
}

OTHERS = {
  'decay of kernels': optax.chain(
    optax.add_decayed_weights(1e-2, kernels_only), optax.sgd(0.1)
  ),
  'late schedule': optax.sgd(late),
  'scale of one layer': optax.chain(
    optax.masked(optax.scale(0.1), {'dense0': True, 'logits': False}), optax.sgd(0.1)
  ),
  'rates by layer': by_layer(optax.sgd(0.1), optax.sgd(0.2)),
  'decay of one layer': by_layer(
    optax.sgd(0.1), optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1))
  ),
  'clip': optax.chain(optax.clip(50.0), optax.sgd(0.1)),
  'momentum': optax.sgd(0.1, momentum=0.9),
  'injected': optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
  'other layers': optax.stateless(lambda g, _: jax.tree.map(lambda x: x[::-1], g)),
  'ascent': optax.scale(0.1),
  'no step': optax.sgd(0.0),
  'shift': optax.stateless(lambda g, _: jax.tree.map(lambda x: -0.1 * (x + 3.0), g)),
  'squares': optax.stateless(lambda g, _: jax.tree.map(lambda x: -0.1 * x * x, g)),
  'rounded': optax.stateless(
    lambda g, _: jax.tree.map(
      lambda x: -0.1 * x.astype(jnp.bfloat16).astype(jnp.float32), g
    )
  ),
  'fewer layers': optax.stateless(lambda g, _: {'logits': g['logits']}),
  'noise': optax.stateless(
    lambda g, _: jax.tree.map(
      lambda x: -0.1 * (x + jax.random.normal(jax.random.key(0), x.shape)), g
    )
  ),
  'fails': optax.stateless(lambda g, _: 1 / 0),
  'branches': optax.stateless(
    lambda g, _: jax.tree.map(lambda x: jnp.where(x > 1e3, 0.0, -0.1 * x), g)
  ),
}


def shared(local, data):
  params = tree.expand(helpers.first_model(local))
  return shared_kernels.kernels(local, ClientModels(params), data)


@pytest.mark.parametrize('name', PLAIN)
def test_plain_sgd_is_told_by_its_rate(name):
  np.testing.assert_allclose(sgd_rate(PLAIN[name], PARAMS), 0.1, rtol=1e-6)
  local = helpers.local(optimizer=PLAIN[name])
  assert learning_rate(local) == pytest.approx(0.1, rel=1e-6)
  np.testing.assert_allclose(variable_rate(PLAIN[name], PARAMS), 0.1, rtol=1e-6)


@pytest.mark.parametrize('name', OTHERS)
def test_what_differs_late_or_in_one_layer_alone_is_not_plain(name):
  local = helpers.local(optimizer=OTHERS[name])._replace(shared_start='on')
  assert not is_plain_sgd(local)
  assert not shared(local, helpers.federation([3, 4]))
  with pytest.raises(UserError, match='optimizer'):
    learning_rate(local)


def named_optimizers():
  """Every optimizer that Optax offers under a name and that a rate alone makes."""
  made = {}
  for name, make in inspect.getmembers(optax, inspect.isfunction):
    parameters = inspect.signature(make).parameters
    if 'learning_rate' not in parameters:
      continue
    required = [p for p in parameters.values() if p.default is p.empty]
    if all(p.name == 'learning_rate' for p in required):
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        made[name] = make(learning_rate=0.1)
  return made


def test_only_sgd_of_the_optimizers_in_optax_is_plain():
  optimizers = named_optimizers()
  assert len(optimizers) > 20
  plain = {n for n, o in optimizers.items() if sgd_rate(o, PARAMS) is not None}
  assert plain == {'sgd', 'scale_by_learning_rate'}


def test_gradients_of_steps_of_another_length_are_those_of_length_1():
  moved = {'a': jnp.array([1.0, -3.0]), 'b': jnp.array([[2.0]])}
  weight = jnp.array([4.0, 0.0])
  result, kept = at_unit_rate(moved, weight, jnp.float32(0.5))
  assert result['a'].tolist() == [2, -6]
  assert result['b'].tolist() == [[4]]
  assert kept.tolist() == [4, 0]
  # Steps of no length tell nothing.
  result, kept = at_unit_rate(moved, weight, jnp.float32(0.0))
  chex.assert_trees_all_equal(result, moved)
  assert kept.tolist() == [0, 0]
  result, kept = at_unit_rate(moved, weight, None)
  assert result is moved
  assert kept is weight


# How far local steps lead along a gradient of 1.


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
  result = step_lengths.lengths(local(optax.sgd(0.25))._replace(model=model), 2)
  np.testing.assert_allclose(result, [0, 0.25, 0.5], rtol=1e-6)
