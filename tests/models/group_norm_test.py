"""Modules with BatchNorm train with GroupNorm instead."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import models
from fesem_jax.utils.errors import UserError

SHAPE, CHANNELS, GROUPS = (4, 5, 3), 6, 2


class Inner(nn.Module):
  axis: int = -1

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Conv(CHANNELS, (1, 1), name='conv')(x)
    x = nn.BatchNorm(not train, axis=self.axis, epsilon=0.01, name='norm')(x)
    return nn.BatchNorm(not train, use_scale=False, name='unscaled')(x=nn.relu(x))


class Net(nn.Module):
  axis: int = -1

  @nn.compact
  def __call__(self, x, train=False):
    x = Inner(self.axis, name='inner')(x, train=train)
    return nn.Dense(2, name='logits')(x.mean(axis=(1, 2)))


def normalize(x, epsilon):
  parts = np.split(x, GROUPS, axis=-1)
  return np.concatenate(
    [
      (p - p.mean(axis=(1, 2, 3), keepdims=True))
      / np.sqrt(p.var(axis=(1, 2, 3), keepdims=True) + epsilon)
      for p in parts
    ],
    axis=-1,
  )


def test_examples_are_normalized_in_groups_under_the_same_names():
  model = models.from_flax(models.with_group_norm(Net(), GROUPS), SHAPE)
  params = jax.jit(model.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda a: np.asarray(a + rng.normal(0, 0.2, a.shape)), params)
  before = jax.eval_shape(Net().init, jax.random.key(0), np.ones((1, *SHAPE)))
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, before['params'])
  x = rng.normal(size=(3, *SHAPE))
  p = params['inner']
  y = x @ p['conv']['kernel'][0, 0] + p['conv']['bias']
  y = normalize(y, 0.01) * p['norm']['scale'] + p['norm']['bias']
  y = normalize(np.maximum(y, 0), 1e-5) + p['unscaled']['bias']
  want = y.mean(axis=(1, 2)) @ params['logits']['kernel'] + params['logits']['bias']
  got = jax.jit(model.apply)(jax.tree.map(np.float32, params), x.astype(np.float32))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_last_axis_may_be_given_by_its_number():
  key, x = jax.random.key(0), np.ones((2, *SHAPE), np.float32)
  last, named = (models.with_group_norm(Net(axis), GROUPS) for axis in (-1, 3))
  outputs = (module.init_with_output(key, x)[0] for module in (last, named))
  np.testing.assert_array_equal(*outputs)


def test_groups_that_do_not_divide_the_channels_become_fewer():
  key, x = jax.random.key(0), np.random.default_rng(0).normal(size=(2, *SHAPE))
  outputs = [
    models.with_group_norm(Net(), *groups).init_with_output(key, x)[0]
    for groups in ((), (2,), (4,), (3,))  # Of six channels.
  ]
  np.testing.assert_array_equal(outputs[0], outputs[1])
  np.testing.assert_array_equal(outputs[2], outputs[1])
  assert np.abs(outputs[3] - outputs[1]).max() > 1e-3


def test_mistakes_are_named():
  models.with_group_norm(Net(), 1)
  with pytest.raises(UserError, match='`groups=0` must be at least 1'):
    models.with_group_norm(Net(), 0)
  with pytest.raises(UserError, match='norm normalizes axis 1'):
    models.from_flax(models.with_group_norm(Net(axis=1)), SHAPE)


def alone(x, groups=1, **options):
  """What a BatchNorm without parameters gives in groups."""
  layer = nn.BatchNorm(True, use_scale=False, use_bias=False, **options)
  return models.with_group_norm(layer, groups).init_with_output(jax.random.key(0), x)[0]


def test_a_slow_variance_stays_exact_about_a_large_mean():
  x = 3000 + np.random.default_rng(0).normal(size=(2, 4, 5, 2)).astype(np.float32)
  wanted = x.astype(np.float64)
  wanted -= wanted.mean(axis=(1, 2, 3), keepdims=True)
  wanted /= wanted.std(axis=(1, 2, 3), keepdims=True)
  found = alone(x, use_fast_variance=False)
  np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)


def test_a_layer_computes_in_the_precision_that_it_had():
  x = np.ones((1, 2, 2, 2), np.float32)
  assert alone(x, dtype=jnp.bfloat16).dtype == jnp.bfloat16
  assert alone(x).dtype == np.float32
