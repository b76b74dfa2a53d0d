"""Optimizers of users: what they see, and their random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.types import Cohort
from fesem_jax.evaluation import evaluate
from fesem_jax.training.cohort import train_cohort
from tests.support import helpers
from tests.support.methods import matrix
from tests.support.nights import rest_by_night


def raw_noise(seed):
  """Adds noise by a key of plain numbers in the state."""

  def update(updates, key, params=None):
    key, own = jax.random.split(key)
    return jax.tree.map(lambda u: u + jax.random.normal(own, u.shape), updates), key

  return optax.GradientTransformation(lambda _: jax.random.PRNGKey(seed), update)


def moves(optimizer, keys=(3,), ids=range(4), steps=1, **options):
  """[R S, P] how far clients move whose loss is constant: their noise, by key."""
  data = helpers.federation([3, 5, 4, 6])
  local = helpers.local(optimizer=optimizer, steps=steps, hidden=(), **options)
  model = local.model._replace(loss=lambda outputs, y: 0.0 * outputs.sum(axis=-1))
  start = tree.expand(helpers.first_model(local))
  cohort = Cohort(np.array(ids, np.int32), everyone=len(ids) == 4)

  @jax.jit
  def ends(key):
    local_ = local._replace(model=model)
    return train_cohort(local_, ClientModels(start), data, cohort, key).params

  return np.concatenate(
    [matrix(ends(jax.random.key(key))) - matrix(start) for key in keys]
  )


NOISY = [optax.noisy_sgd(1.0, 1.0, 0.0, key=7), raw_noise]


@pytest.mark.slow
@pytest.mark.parametrize('noisy', rest_by_night(NOISY))
def test_noise_is_that_of_the_client_the_round_and_the_key(noisy):
  def made(seed):
    if noisy is raw_noise:
      return raw_noise(seed)
    return optax.noisy_sgd(1.0, 1.0, 0.0, key=seed)

  of_keys = moves(made(7), keys=(3, 4))
  noise = of_keys[:4]
  assert 0.5 < noise.std() < 1.5
  every = np.concatenate([of_keys, moves(made(8))])
  alike = np.corrcoef(every) - np.eye(len(every))
  assert np.abs(alike).max() < 0.8  # Of 21 numbers; those of one key have 1.
  assert len(np.unique(every[:, 0])) == len(every)
  # It does not depend on who else trains, on chunks or on devices.
  np.testing.assert_allclose(moves(made(7), chunk=1, devices=2), noise, rtol=1e-6)
  np.testing.assert_allclose(moves(made(7), ids=[3, 1]), noise[[3, 1]], rtol=1e-6)
  # A later step draws anew.
  two = moves(made(7), steps=2)
  assert np.abs(two - 2 * noise).min(axis=1).max() > 1e-3


def test_a_stack_of_keys_becomes_as_many():
  key = jax.random.key(1)
  for keys in (jax.random.split(key, 3), jnp.tile(jax.random.PRNGKey(2), (3, 1))):
    result = prng_streams.with_keys({'keys': keys, 'count': jnp.int32(4)}, key)
    assert (result['keys'].shape, result['keys'].dtype) == (keys.shape, keys.dtype)
    typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    data = jax.random.key_data(result['keys']) if typed else result['keys']
    assert len(np.unique(data, axis=0)) == 3
    assert result['count'] == 4


def by_layer(frozen):
  """SGD that leaves layers alone: one by its name, and biases by their axes."""
  of_names = optax.multi_transform(
    {'moves': optax.sgd(0.5), 'stays': optax.set_to_zero()},
    lambda params: {name: 'stays' if name == frozen else 'moves' for name in params},
  )

  def biases(params):
    return jax.tree.map(lambda x: x.ndim == 1, params)

  return optax.chain(of_names, optax.masked(optax.set_to_zero(), biases))


@pytest.mark.parametrize(
  'name', rest_by_night(['fed_avg', 'moon', 'ditto', 'p_fed_me'], by_day=3)
)
def test_methods_train_by_the_names_and_shapes_of_the_models_layers(name):
  data, frozen = helpers.federation([5, 4, 6, 3]), 'dense0'
  local = helpers.local(optimizer=by_layer(frozen))
  algorithm = algorithms.build(name, local)
  start = jax.jit(algorithm.init)(jax.random.key(0), data)
  cohort = helpers.everyone(data)
  end, _ = jax.jit(algorithm.step)(start, data, cohort, jax.random.key(1))
  before, after = start.params, end.params
  for layer in before:
    for part in before[layer]:
      moved = np.abs(after[layer][part] - before[layer][part]).max()
      stays = layer == frozen or part == 'bias'
      assert moved < 1e-7 if stays else moved > 1e-3, (layer, part)


def no_layer_of_its_name(params):
  return {name: name in ('dense0', 'logits') for name in params}


def no_bias_and_no_kernel(params):
  return jax.tree.map(lambda x: x.ndim in (1, 2), params)


@pytest.mark.parametrize('stays', [no_layer_of_its_name, no_bias_and_no_kernel])
def test_fine_tuning_of_a_mixture_sees_each_of_its_models(stays):
  data = helpers.federation([5, 4, 6, 3])

  def figures(optimizer):
    local = helpers.local(optimizer=optimizer)
    stack = helpers.first_models(local, 2)
    used = ClientModels(stack, mixture=jnp.full((4, 2), 0.5))
    measure = jax.jit(
      lambda d: evaluate.evaluate_clients(used, local, d, d, jax.random.key(1), 3)[:2]
    )
    both = measure(data)
    return [evaluate.client_metrics(t, local.model.task)['accuracy'] for t in both]

  deployed, tuned = figures(optax.sgd(2.0))
  assert (deployed != tuned).any()
  frozen = optax.chain(optax.sgd(2.0), optax.masked(optax.set_to_zero(), stays))
  deployed, tuned = figures(frozen)
  np.testing.assert_array_equal(deployed, tuned)
