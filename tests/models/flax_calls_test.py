"""What modules are given beside the examples, in training and in evaluation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors, nnx

from fesem_jax import models
from fesem_jax.models.nnx_modules import _filled
from fesem_jax.utils.errors import UserError
from tests.support import helpers

X = np.random.default_rng(0).normal(size=(5, *helpers.SHAPE)).astype(np.float32)
KEY = jax.random.key(3)


class Dropping(nn.Module):
  rate: float = 0.5

  @nn.compact
  def __call__(self, x, training=True):
    return nn.Dense(3)(nn.Dropout(self.rate)(x, deterministic=not training))


def test_the_argument_training_tells_when_to_drop():
  model = models.from_flax(Dropping(), helpers.SHAPE)
  params = model.init(jax.random.key(0))
  variables = {'params': params}
  expected = Dropping().apply(variables, X, training=False)
  np.testing.assert_array_equal(model.apply(params, X), expected)
  expected = Dropping().apply(variables, X, training=True, rngs={'dropout': KEY})
  np.testing.assert_array_equal(model.apply_train(params, X, KEY), expected)


class Turning(nn.Module):
  """Turns the examples around where it does not train, and draws nothing."""

  @nn.compact
  def __call__(self, x, training):
    return nn.Dense(3)(x if training else -x)


class NnxTurning(nnx.Module):
  """The same in NNX, told by its own `train()` and `eval()`."""

  def __init__(self, rngs):
    self.Dense_0 = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)
    self.deterministic = False

  def __call__(self, x):
    return self.Dense_0(-x if self.deterministic else x)


@pytest.mark.parametrize('module', [Turning(), NnxTurning])
def test_a_module_that_draws_nothing_trains_as_another_function(module):
  model = models.from_flax(module, helpers.SHAPE)
  params = model.init(jax.random.key(0))
  expected = X @ params['Dense_0']['kernel']
  np.testing.assert_allclose(model.apply(params, X), -expected, rtol=1e-4)
  np.testing.assert_allclose(model.apply_train(params, X, KEY), expected, rtol=1e-4)


class NnxNet(nnx.Module):
  """Is told by an argument that has no default, unless it draws always."""

  def __init__(self, rngs, rate=0.5, always=False):
    self.drop = nnx.Dropout(rate, rngs=rngs)
    self.dense = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)
    self.always = always

  def __call__(self, x, *, train):
    return self.dense(self.drop(x, deterministic=not (train or self.always)))


def test_an_nnx_module_is_told_by_its_argument_too():
  model = models.from_flax(NnxNet, helpers.SHAPE)
  params = model.init(jax.random.key(0))
  expected = X @ params['dense']['kernel'] + params['dense']['bias'][None]
  np.testing.assert_allclose(model.apply(params, X), expected, rtol=1e-4, atol=1e-6)
  dropped = model.apply_train(params, X, KEY)
  assert (dropped != model.apply_train(params, X, jax.random.key(4))).any()
  assert np.abs(dropped - expected).max() > 1e-3


def test_a_module_that_is_the_same_in_training_has_one_function():
  for module in (Dropping(0.0), lambda rngs: NnxNet(rngs, 0.0)):
    assert models.from_flax(module, helpers.SHAPE).apply_train is None


class Noisy(nn.Module):
  """Draws whether or not it trains."""

  @nn.compact
  def __call__(self, x, train=False):
    return nn.Dense(3)(x + jax.random.normal(self.make_rng('noise'), x.shape))


def test_modules_that_draw_in_evaluation_are_refused():
  with pytest.raises(errors.InvalidRngError, match='noise'):  # Of Flax.
    models.from_flax(Noisy(), helpers.SHAPE)
  with pytest.raises(UserError, match='module'):
    models.from_flax(lambda rngs: NnxNet(rngs, always=True), helpers.SHAPE)


def test_streams_start_anew_with_keys_of_their_own_in_their_shapes():
  old = jax.random.key(9)
  streams = {'count': jnp.uint32(5), 'key': old, 'keys': jax.random.split(old, 3)}
  result = _filled(streams, KEY)
  assert (int(result['count']), result['count'].dtype) == (0, np.uint32)
  assert (result['key'].shape, result['keys'].shape) == ((), (3,))
  every = jax.random.key_data(jnp.stack([old, KEY, result['key'], *result['keys']]))
  assert len(np.unique(every, axis=0)) == 6
