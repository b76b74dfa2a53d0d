"""Layers that draw random numbers: in local training alone, by client and step."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fesem_jax import models
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.evaluation.evaluate import evaluate_clients
from fesem_jax.models.mixture import as_one_model
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import assert_close

SIZES = [6, 3, 9, 5]
KEY = jax.random.key(3)


def mask(key, shape):
  """Dropout of half of the inputs: what they are multiplied by."""
  return 2.0 * jax.random.bernoulli(key, 0.5, shape)


def dropping(**options):
  """Local training of the small MLP, half of whose inputs drop out."""
  local = helpers.local(**options)
  plain = local.model

  def apply_train(params, x, key):
    return plain.apply(params, x * mask(key, x.shape))

  return local._replace(model=plain._replace(apply_train=apply_train))


def dropped(batches, client, width, round_key=KEY):
  """The batches of a client as its local steps see them, spelled out."""
  of_client = jax.random.fold_in(jax.random.fold_in(round_key, client), 2**31 - 15)
  seen = []
  for step, (x, y) in enumerate(batches):
    of_step = mask(jax.random.fold_in(of_client, step), (width, *x.shape[1:]))
    seen.append((x * np.asarray(of_step)[: len(x)], y))
  return seen


def trained(local, data):
  start = tree.expand(jax.jit(local.model.init)(jax.random.key(0)))
  run = jax.jit(
    lambda p, d: train_cohort(local, ClientModels(p), d, helpers.everyone(d), KEY)
  )
  return start, run(start, data)


@pytest.mark.parametrize(('chunk', 'devices'), [(1, 1), (2, 2)])
def test_clients_draw_anew_at_every_step(chunk, devices):
  data = helpers.federation(SIZES)
  local = dropping(epochs=2, chunk=chunk, devices=devices)
  start, got = trained(local, data)
  for i in range(len(SIZES)):
    batches = helpers.batches(data, local.schedule, i, KEY)
    seen = dropped(batches, i, width=4)
    want, _ = reference.local_sgd(reference.from_params(start, 0), seen, 0.1)
    assert_close(
      reference.flat(reference.from_params(got.params, i)),
      reference.flat(want),
      rtol=1e-3,
    )


def test_models_are_measured_whole_and_fine_tuned_with_dropout():
  data, local = helpers.federation(SIZES), dropping()
  start = tree.expand(helpers.first_model(local))
  deployed, tuned, _ = jax.jit(
    lambda p, d: evaluate_clients(ClientModels(p), local, d, d, KEY, 20)
  )(start, data)

  def correct(model, i):
    x, y = data.client(i)
    (w0, b0), (w1, b1) = model
    guess = (np.maximum(x @ w0 + b0, 0) @ w1 + b1).argmax(axis=1)
    return (guess == y).sum()

  before = reference.from_params(start, 0)
  schedule = local.schedule._replace(epochs=20)
  for i in range(len(SIZES)):
    assert deployed.sums.correct[i].sum() == correct(before, i)
    batches = helpers.batches(data, schedule, i, KEY)
    after, _ = reference.local_sgd(before, dropped(batches, i, width=4), 0.1)
    assert tuned.sums.correct[i].sum() == correct(after, i)


def test_a_mixture_draws_for_each_of_its_models():
  local = dropping()
  stack = helpers.first_models(local, 2, 1)
  weights = jnp.array([[0.25, 0.75]])
  model, used, _ = as_one_model(local.model, ClientModels(stack, mixture=weights))
  params = tree.unstack(used.params(1), 0)
  x = np.random.default_rng(0).normal(size=(3, *helpers.SHAPE)).astype(np.float32)
  got = model.apply_train(params, x, KEY)
  keys = jax.random.split(KEY, 2)
  shares = [
    jax.nn.softmax(local.model.apply_train(tree.unstack(stack, k), x, keys[k]))
    for k in (0, 1)
  ]
  assert_close(np.exp(got), 0.25 * shares[0] + 0.75 * shares[1])


class Told(nn.Module):
  """Learns by an argument of any of three names that it trains."""

  @nn.compact
  def __call__(self, x, train=True, training=True, deterministic=False):
    del training
    x = nn.Dropout(0.5, deterministic=deterministic or not train)(x)
    return nn.Dense(3, name='dense')(x)


class Needed(nn.Module):
  @nn.compact
  def __call__(self, x, *, deterministic):
    x = nn.Dense(8, name='first')(x)
    x = nn.Dropout(0.25)(x, deterministic=deterministic)
    return nn.Dense(3, name='dense')(x)


@pytest.mark.parametrize('module', [Told(), Needed()])
def test_linen_modules_are_told_when_they_train(module):
  model = models.from_flax(module, helpers.SHAPE)
  params = model.init(jax.random.key(0))
  x = np.random.default_rng(0).normal(size=(5, *helpers.SHAPE)).astype(np.float32)
  mode = {'deterministic': True}
  mode |= {'train': False} if isinstance(module, Told) else {}
  want = module.apply({'params': params}, x, **mode)
  np.testing.assert_array_equal(model.apply(params, x), want)
  mode = {name: not value for name, value in mode.items()}
  want = module.apply({'params': params}, x, **mode, rngs={'dropout': KEY})
  np.testing.assert_array_equal(model.apply_train(params, x, KEY), want)
  assert (model.apply_train(params, x, jax.random.key(4)) != want).any()


class Nnx(nnx.Module):
  def __init__(self, rngs):
    self.first = nnx.Linear(*helpers.SHAPE, 8, rngs=rngs)
    self.drops = nnx.List([nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)])
    self.dense = nnx.Linear(8, 3, rngs=rngs)

  def __call__(self, x):
    x = self.first(x)
    return self.dense(jnp.concatenate([d(x[:, :4]) for d in self.drops], axis=1))


def test_nnx_modules_are_switched_to_training_and_back():
  model = models.from_flax(Nnx, helpers.SHAPE)
  params = model.init(jax.random.key(0))
  x = np.random.default_rng(0).normal(size=(64, *helpers.SHAPE)).astype(np.float32)
  first, dense = (jax.tree.map(np.asarray, params[n]) for n in ('first', 'dense'))
  hidden = x @ first['kernel'] + first['bias']
  twice = np.concatenate([hidden[:, :4]] * 2, axis=1)
  want = twice @ dense['kernel'] + dense['bias']
  assert_close(model.apply(params, x), want)
  # Of the identity as the last layer, what is left of each unit.
  params['dense'] = {'kernel': jnp.eye(8)[:, :3], 'bias': jnp.zeros(3)}
  ends = jax.jit(model.apply_train)(params, x, KEY)
  left = np.asarray(ends / hidden[:, :3])
  assert np.isclose(left, 0).mean() == pytest.approx(0.5, abs=0.15)
  assert_close(left[~np.isclose(left, 0)], 2.0, rtol=1e-3)
  np.testing.assert_array_equal(model.apply_train(params, x, KEY), ends)
  other = model.apply_train(params, x, jax.random.key(4))
  assert not np.array_equal(ends, other)
  # Layers side by side drop different units.
  params['dense'] = {'kernel': jnp.eye(8)[:, 3:6], 'bias': jnp.zeros(3)}
  beside = np.asarray(model.apply_train(params, x, KEY))[:, 1:] == 0
  assert (beside != np.asarray(ends == 0)[:, :2]).any()


def test_another_function_of_a_model_that_draws_trains_only_if_it_is_said():
  local, data = dropping(), helpers.federation(SIZES)

  def blind(params, x):
    return local.model.apply(params, 0.0 * x)

  with pytest.raises(UserError, match='apply_train'):
    local.model._replace(apply=blind)
  model = local.model._replace(apply=blind, apply_train=None)
  start, end = trained(local._replace(model=model), data)
  kernel = start['dense0']['kernel']
  np.testing.assert_array_equal(
    end.params['dense0']['kernel'], np.repeat(kernel, len(SIZES), axis=0)
  )
