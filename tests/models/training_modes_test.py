"""What modules are given beside the examples, in training and in evaluation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fesem_jax import models
from fesem_jax.models.nnx_modules import _filled
from tests.support import helpers

X = np.random.default_rng(0).normal(size=(5, *helpers.SHAPE)).astype(np.float32)
KEY = jax.random.key(3)


class Dropping(nn.Module):
  @nn.compact
  def __call__(self, x, training=True):
    return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=not training))


class Turning(nn.Module):
  """Turns the examples around where it does not train, and draws nothing."""

  @nn.compact
  def __call__(self, x, training):
    return nn.Dense(3)(x if training else -x)


class TurningByDefault(Turning):
  @nn.compact
  def __call__(self, x, training=True):
    return nn.Dense(3)(x if training else -x)


def test_the_argument_training_tells_when_to_drop():
  model = models.from_flax(Dropping(), helpers.SHAPE)
  params = model.init(jax.random.key(0))
  variables = {'params': params}
  wanted = Dropping().apply(variables, X, training=False)
  np.testing.assert_array_equal(model.apply(params, X), wanted)
  wanted = Dropping().apply(variables, X, training=True, rngs={'dropout': KEY})
  np.testing.assert_array_equal(model.apply_train(params, X, KEY), wanted)


@pytest.mark.parametrize(
  ('module', 'turns'), [(Turning(), True), (TurningByDefault(), False)]
)
def test_a_module_that_draws_nothing_evaluates_unless_its_default_says_otherwise(
  module, turns
):
  model = models.from_flax(module, helpers.SHAPE)
  assert model.apply_train is None
  layer = model.init(jax.random.key(0))['Dense_0']
  wanted = (-X if turns else X) @ layer['kernel']
  np.testing.assert_allclose(model.apply({'Dense_0': layer}, X), wanted, rtol=1e-4)


class NnxTold(nnx.Module):
  """Is told by an argument that has no default."""

  def __init__(self, rngs):
    self.drop = nnx.Dropout(0.5, rngs=rngs)
    self.dense = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)

  def __call__(self, x, *, train):
    return self.dense(self.drop(x, deterministic=not train))


def test_an_nnx_module_is_told_by_its_argument_too():
  model = models.from_flax(NnxTold, helpers.SHAPE)
  params = model.init(jax.random.key(0))
  wanted = X @ params['dense']['kernel'] + params['dense']['bias'][None]
  np.testing.assert_allclose(model.apply(params, X), wanted, rtol=1e-4, atol=1e-6)
  dropped = model.apply_train(params, X, KEY)
  assert (dropped != model.apply_train(params, X, jax.random.key(4))).any()
  assert np.abs(dropped - wanted).max() > 1e-3


def test_streams_start_anew_with_keys_of_their_own_in_their_shapes():
  old = jax.random.key(9)
  streams = {'count': jnp.uint32(5), 'key': old, 'keys': jax.random.split(old, 3)}
  found = _filled(streams, KEY)
  assert (int(found['count']), found['count'].dtype) == (0, np.uint32)
  assert (found['key'].shape, found['keys'].shape) == ((), (3,))
  every = jax.random.key_data(jnp.stack([old, KEY, found['key'], *found['keys']]))
  assert len(np.unique(every, axis=0)) == 6
