"""Models start from given weights, and train some layers only."""

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax import algorithms, models
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.traffic import bytes_of_model
from fesem_jax.models import starting
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import federation, run
from tests.support.nights import rest_by_night

MODEL = models.build('mlp', helpers.SHAPE, 3, (5,))
KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(4, *helpers.SHAPE)).astype(np.float32)


def weights():
  params = jax.device_get(jax.jit(MODEL.init)(jax.random.key(7)))
  return flatten_dict(params, sep='/')


def test_a_model_starts_from_given_weights_whole_or_by_layer():
  arrays = weights()
  whole = jax.jit(starting.start_from(MODEL, arrays, 'here').init)(jax.random.key(0))
  chex.assert_trees_all_equal(flatten_dict(jax.device_get(whole), sep='/'), arrays)
  nested = starting.start_from(MODEL, unflatten_dict(arrays, sep='/')).init
  chex.assert_trees_all_equal(jax.jit(nested)(jax.random.key(1)), whole)
  some = starting.start_from(MODEL, arrays, 'here', ['dense*'])
  mixed = jax.device_get(jax.jit(some.init)(jax.random.key(0)))
  drawn = jax.device_get(jax.jit(MODEL.init)(jax.random.key(0)))
  chex.assert_trees_all_equal(mixed['logits'], drawn['logits'])
  np.testing.assert_array_equal(mixed['dense0']['kernel'], arrays['dense0/kernel'])
  more = arrays | {'more/bias': 1}
  chex.assert_trees_all_equal(starting.start_from(MODEL, more).init(KEY), whole)


@pytest.mark.parametrize(
  ('changes', 'layers', 'message'),
  [
    ({'logits/bias': np.zeros(9)}, (), 'here: logits/bias has shape'),
    ({'dense0/bias': np.full(5, np.nan)}, (), 'dense0/bias in here'),
    ({'dense0/bias': np.full(5, 1e300)}, (), 'dense0/bias in here'),  # In float32.
    ({}, ['norm'], 'norm'),
    ({}, (), 'here: has no logits/bias'),
  ],
)
def test_what_does_not_fit_is_named(changes, layers, message):
  arrays = weights() | changes
  if not changes:
    del arrays['logits/bias']
  with pytest.raises(UserError, match=message):
    starting.start_from(MODEL, arrays, 'here', layers)


def frozen():
  """A model whose first layer does not train, and the parameters of all layers."""
  arrays = weights()
  model = starting.start_from(MODEL, arrays, 'here')
  return starting.train_only(model, ['logits'], jax.random.key(0)), arrays


def test_layers_that_do_not_train_are_constants():
  model, arrays = frozen()
  params = jax.jit(model.init)(jax.random.key(1))
  assert list(params) == ['logits']
  hidden = np.maximum(
    X.reshape(4, -1) @ arrays['dense0/kernel'] + arrays['dense0/bias'], 0
  )
  want = hidden @ arrays['logits/kernel'] + arrays['logits/bias']
  np.testing.assert_allclose(
    jax.jit(model.apply)(params, X), want, rtol=1e-5, atol=1e-5
  )
  assert starting.whole_model(model).apply is MODEL.apply
  assert starting.whole_model(MODEL) is MODEL


def test_layers_that_do_not_train_are_drawn_by_a_key_of_their_own():
  x = X[:2]
  for key, number in ((None, 0), (jax.random.key(0), 0), (jax.random.key(5), 5)):
    model = starting.train_only(MODEL, ['log*'], key)
    params = jax.jit(model.init)(jax.random.key(1))
    drawn = jax.jit(MODEL.init)(jax.random.key(number))
    expected = jax.jit(MODEL.apply)(drawn | params, x)
    np.testing.assert_array_equal(jax.jit(model.apply)(params, x), expected)
    assert model.layers == ()
  with pytest.raises(UserError, match='train_layers'):
    starting.train_only(MODEL, ['Logits'])


def test_layers_beside_constants_may_be_of_clients_and_centers():
  model = models.build('mlp', helpers.SHAPE, 3, (5, 4))
  model = starting.train_only(model, ['dense1', 'logits'])
  start = jax.jit(starting.whole_model(model).init)(jax.random.key(0))
  shared = {'dense1': jax.tree.map(lambda x: np.stack([x, x + 1]), start['dense1'])}
  personal = {'logits': jax.tree.map(lambda x: np.stack([x] * 3), start['logits'])}
  used = ClientModels(
    shared | {'logits': None}, np.array([1, 0, 1]), personal | {'dense1': None}
  )
  whole = starting.with_constants(model, used)
  assert whole.num_models() == 2
  assert whole.personal.keys() == whole.shared.keys()
  every = whole.params(3)
  for i in range(3):
    np.testing.assert_array_equal(
      every['dense0']['kernel'][i], start['dense0']['kernel']
    )
  added = np.asarray(every['dense1']['bias']) - np.asarray(start['dense1']['bias'])
  np.testing.assert_array_equal(added[:, 0], [1, 0, 1])
  assert starting.with_constants(MODEL, used) is used
  assert starting.trained_part(MODEL, start) is start


@pytest.mark.slow
@pytest.mark.parametrize('name', rest_by_night(['fesem', 'ditto']))
def test_methods_train_as_if_only_these_layers_were_the_model(name):
  """A linear model of the first layer's units, computed beforehand, trains alike."""
  model, arrays = frozen()
  data = federation()
  local = helpers.local()._replace(model=model, optimizer=optax.sgd(0.1))
  options = {'num_clusters': 2} if name == 'fesem' else {}
  state, _ = run(algorithms.build(name, local, **options), data, rounds=2)

  def units(x):
    x = np.asarray(x, np.float32).reshape(len(x), -1) * data.scale
    return np.maximum(x @ arrays['dense0/kernel'] + arrays['dense0/bias'], 0)

  ahead = dataclasses.replace(data, x=units(data.x), scale=1.0)
  head = models.build('logistic', (5,), 3)
  logits = {f'logits/{n}': arrays[f'logits/{n}'] for n in ('kernel', 'bias')}
  head = starting.start_from(head, logits, 'here')
  local = local._replace(model=head)
  want, _ = run(algorithms.build(name, local, **options), ahead, rounds=2)
  chex.assert_trees_all_close(
    jax.device_get(state), jax.device_get(want), rtol=1e-4, atol=1e-5
  )


def test_products_of_all_dense_layers_can_be_given_beside_constants():
  model, arrays = frozen()
  params, seen = model.init(jax.random.key(1)), []

  def multiply(path, x):
    seen.append((path, x.shape))
    return jnp.full((4, 3), 2.0) if path == ('logits',) else None

  got = model.apply_with(params, X, multiply)
  assert seen == [(('dense0',), (4, 6)), (('logits',), (4, 5))]
  np.testing.assert_allclose(got, np.tile(2 + arrays['logits/bias'], (4, 1)), rtol=1e-6)
  without = starting.train_only(MODEL._replace(apply_with=None), ['logits'])
  assert without.apply_with is None


class Lora(nn.Module):
  """A dense layer plus a product of two thin matrices."""

  @nn.compact
  def __call__(self, x):
    a = self.param('lora_a', nn.initializers.normal(0.1), (6, 2))
    b = self.param('lora_b', nn.initializers.zeros, (2, 3))
    return nn.Dense(3, name='base')(x) + x @ a @ b


class Adapted(nn.Module):
  """An adapter within a layer."""

  @nn.compact
  def __call__(self, x):
    return Lora(name='logits')(x)


ADAPTED = models.from_flax(Adapted(), (6,))


def test_adapters_within_layers_train_alone():
  """Against float64 SGD on the two factors, from one client's batches."""
  model = starting.train_only(ADAPTED, ['*/lora_a', '*/lora_b'])
  data, local = helpers.federation([7]), helpers.local(epochs=2)._replace(model=model)
  algorithm = algorithms.build('fed_avg', local)
  assert bytes_of_model(algorithm.local) == 4 * (6 * 2 + 2 * 3)
  first = algorithm.init(jax.random.key(0), data).params['logits']
  assert set(first) == {'lora_a', 'lora_b'}
  a, b = (np.asarray(first[n][0], np.float64) for n in ('lora_a', 'lora_b'))
  base = jax.jit(ADAPTED.init)(jax.random.key(0))['logits']['base']
  w, bias = (np.asarray(base[n], np.float64) for n in ('kernel', 'bias'))
  key = jax.random.fold_in(jax.random.key(9), 1)
  for x, y in helpers.batches(data, local.schedule, 0, key):
    # The gradient G of the loss to W + A B gives G B^T and A^T G.
    _, ((g, _),) = reference.loss_and_gradient([(w + a @ b, bias)], x, y)
    a, b = a - 0.1 * g @ b.T, b - 0.1 * a.T @ g
  state, _ = run(algorithm, data, rounds=1)
  np.testing.assert_allclose(state.params['logits']['lora_a'][0], a, rtol=1e-4)
  np.testing.assert_allclose(
    state.params['logits']['lora_b'][0], b, rtol=1e-4, atol=1e-6
  )
  whole = starting.with_constants(model, algorithm.deployed(state, data)).params(1)
  np.testing.assert_array_equal(whole['logits']['base']['kernel'][0], base['kernel'])
  part = starting.trained_part(model, whole)
  chex.assert_trees_all_equal(part, state.params)


def test_adapters_may_stay_with_clients():
  model = starting.train_only(ADAPTED, ['*/lora*'])
  data, local = federation(), helpers.local()._replace(model=model)
  options = {'head_layers': ['**/lora_b'], 'head_epochs': 1}
  algorithm = algorithms.build('fed_rep', local, **options)
  state, _ = run(algorithm, data, rounds=2)
  used = algorithm.deployed(state, data)
  every = starting.with_constants(model, used).params(6)['logits']
  distinct = [len(np.unique(every[n], axis=0)) for n in ('lora_a', 'lora_b')]
  assert (distinct, every['base']['kernel'].shape) == ([1, 6], (6, 6, 3))


def test_layers_that_do_not_train_are_constants_in_training_too():
  def apply_train(params, x, key):
    return MODEL.apply(params, x) + jax.random.uniform(key)

  arrays, key = weights(), jax.random.key(3)
  model = starting.start_from(MODEL, arrays, 'here')
  drawing = starting.train_only(model._replace(apply_train=apply_train), ['logits'])
  params = drawing.init(jax.random.key(1))
  want = drawing.apply(params, X) + jax.random.uniform(key)
  np.testing.assert_allclose(drawing.apply_train(params, X, key), want, rtol=1e-6)
