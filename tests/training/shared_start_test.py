"""Kernels as changes to a shared start: which, how they multiply, what they end as.

That local training matches the float64 reference both ways is in local_test, and that
every method's rounds do, for random federations, in properties_test.
"""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import models
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.local_training import Machine, local_training
from fesem_jax.training import kernel_change, shared_kernels
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.nights import rest_by_night

SIZES = [7, 1, 12, 4, 9, 5]


def paths(local, data, start=None, layers=None):
  params = jax.eval_shape(lambda: tree.expand(local.model.init(jax.random.key(0))))
  start = ClientModels(params) if start is None else start
  return [k.path for k in shared_kernels.kernels(local, start, data, layers)]


def on(**kwargs):
  return helpers.local(**kwargs)._replace(shared_start='on')


@pytest.mark.parametrize('center', [None, 0, 1])
def test_the_product_and_its_gradients_are_those_of_the_whole_kernel(center):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  x, kernel, dy = normal(4, 7), normal(7, 5), normal(4, 5)
  blocks = [
    kernel_change.Block(normal(9, 7), normal(9, 5), normal(9)) for _ in range(2)
  ]
  empty = jax.tree.map(lambda x: x * jnp.nan, blocks[0])  # Not to be read.
  rows = (jnp.zeros((4, 7)), jnp.zeros((4, 5)))
  start, change = (
    kernel_change.KernelStart(kernel),
    kernel_change.KernelChange((*blocks, empty)),
  )
  if center is not None:
    other, kernel = kernel, normal(7, 5)
    pair = (kernel, other) if center == 0 else (other, kernel)
    start = kernel_change.KernelStart(*pair, jnp.bool_(True))
    change = change._replace(from_other=jnp.bool_(center == 1))

  def shared(x, rows):
    return (kernel_change.product(x, start, change, jnp.int32(1), rows) * dy).sum()

  whole = kernel
  for inputs, gradients, shares in blocks:
    whole -= inputs.T @ (gradients * shares[:, None])
  want, of_whole = jax.value_and_grad(lambda x: ((x @ whole) * dy).sum())(x)
  got, (of_x, of_rows) = jax.value_and_grad(shared, (0, 1))(x, rows)
  chex.assert_trees_all_close((got, of_x), (want, of_whole), rtol=1e-5, atol=1e-5)
  chex.assert_trees_all_equal(of_rows, (x, dy))


def test_auto_takes_large_kernels_whose_rows_stay_small():
  data = helpers.federation([100] * 3, shape=(28, 28), classes=62)
  cnn = models.build('femnist_cnn', (28, 28), 62)

  def local(model=cnn, shared_start='auto', **kwargs):
    machine = Machine(shared_start=shared_start)
    return local_training(model, optax.sgd(0.1), machine=machine, **kwargs)

  assert paths(local(), data) == [('dense',)]
  assert paths(local(epochs=5), data) == [('dense',)]
  assert not paths(local(epochs=20), data)
  assert not paths(local(shared_start='off'), data)
  assert paths(local(shared_start='on'), data) == [('dense',), ('logits',)]
  assert not paths(local(models.build('mlp', (28, 28), 62)), data)
  with pytest.raises(UserError, match='shared_start'):
    local(shared_start='yes')


def test_only_kernels_that_are_shared_and_learn_are_taken():
  data, local = helpers.federation(SIZES), on()
  assert paths(local, data) == [('dense0',), ('logits',)]
  assert paths(local, data, layers=['dense0']) == [('dense0',)]
  model = tree.expand(helpers.first_model(local))
  assert not paths(local, data, ClientModels(personal=tree.repeat(model, 6)))
  heads = ClientModels(
    model | {'logits': None}, personal={'dense0': None, 'logits': model}
  )
  assert paths(local, data, heads) == [('dense0',)]


class Block(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.relu(nn.Dense(5, use_bias=False)(x))


class Twice(nn.Module):
  """A layer within a layer, one that runs twice, and one without a bias."""

  @nn.compact
  def __call__(self, x):
    again = nn.Dense(6, name='again')
    x = nn.relu(again(nn.relu(again(x))))
    return nn.Dense(helpers.CLASSES)(Block()(x))


def trained(local, data, prox=0.1, starts=None, layers=None):
  if starts is None:
    starts = ClientModels(tree.expand(helpers.first_model(local)))
  run = jax.jit(
    lambda starts, data, key: train_cohort(
      local, starts, data, helpers.everyone(data), key, penalty=prox, layers=layers
    )
  )
  return run(starts, data, jax.random.key(3))


def test_full_blocks_count_like_the_one_being_filled(monkeypatch):
  monkeypatch.setattr(shared_kernels, '_BLOCK', 8)  # Two steps of four rows.
  data, local = helpers.federation(SIZES), on(chunk=4, epochs=3)
  params = tree.expand(helpers.first_model(local))
  (kernel, _) = shared_kernels.kernels(local, ClientModels(params), data)
  assert (kernel.steps, kernel.block) == (9, 2)
  want = trained(local._replace(shared_start='off'), data)
  chex.assert_trees_all_close(trained(local, data), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  ('chunk', 'layers'), rest_by_night([(4, None), (3, ['Block_0'])])
)
def test_layers_of_any_flax_module_end_alike(chunk, layers):
  data = helpers.federation(SIZES)
  model = models.from_flax(Twice(), helpers.SHAPE)
  local = on(chunk=chunk)._replace(model=model, lr_schedule=lambda r: 1 / (1 + r))
  assert paths(local, data) == [('Block_0', 'Dense_0'), ('Dense_0',)]
  want = trained(local._replace(shared_start='off'), data, layers=layers)
  got = trained(local, data, layers=layers)
  chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-6)


class Mapped(nn.Module):
  """A layer with a kernel for each of two maps, [2, I, O]."""

  @nn.compact
  def __call__(self, x):
    layers = nn.vmap(
      nn.Dense, variable_axes={'params': 0}, split_rngs={'params': True},
      in_axes=None, axis_size=2,
    )  # fmt: skip
    return nn.Dense(helpers.CLASSES, name='out')(nn.relu(layers(5)(x).sum(axis=0)))


class Normalized(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.WeightNorm(nn.Dense(5))(x))
    return nn.Dense(helpers.CLASSES, name='out')(x)


class Half(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(5, dtype=jnp.bfloat16)(x)).astype(jnp.float32)
    return nn.Dense(helpers.CLASSES, name='out')(x)


class Tied(nn.Module):
  @nn.compact
  def __call__(self, x):
    layer = nn.Dense(5)
    x = nn.relu(layer(x)) @ layer.variables['params']['kernel'].T
    return nn.Dense(helpers.CLASSES, name='out')(x)


class Doubled(nn.Module):
  """An interceptor of its own changes what the first layer does."""

  @nn.compact
  def __call__(self, x):
    def twice(call, args, kwargs, context):
      return 2 * call(*args, **kwargs)

    with nn.intercept_methods(twice):
      x = nn.Dense(5)(x)
    return nn.Dense(helpers.CLASSES, name='out')(nn.relu(x))


MODULES = [Mapped, Normalized, Half, Tied, Doubled]


@pytest.mark.parametrize('module', rest_by_night(MODULES, by_day=3))
def test_kernels_that_no_single_float32_product_reads_stay_the_clients_own(module):
  data = helpers.federation(SIZES)
  local = on()._replace(model=models.from_flax(module(), helpers.SHAPE))
  assert paths(local, data) == [('out',)]


class WithoutBias(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(helpers.CLASSES, use_bias=False)(Block()(x))


@pytest.mark.parametrize('module', [Doubled, WithoutBias])
def test_a_kernel_that_stays_the_clients_own_beside_a_shared_one_ends_alike(module):
  data, local = helpers.federation(SIZES), on(chunk=4)
  local = local._replace(model=models.from_flax(module(), helpers.SHAPE))
  assert len(paths(local, data)) == 1
  want = trained(local._replace(shared_start='off'), data)
  chex.assert_trees_all_close(trained(local, data), want, rtol=1e-4, atol=1e-6)


def test_convolutional_clients_of_several_centers_end_alike():
  # In chunks of three: two centers in one, although the three clients of most work are
  # of three.
  data, choice = helpers.federation(SIZES, shape=(8, 8)), [2, 1, 0, 2, 1, 2]
  local = on(model='small_cnn', shape=(8, 8), chunk=2)
  local = local._replace(clients_per_shared_start=3)
  centers = helpers.first_models(local, 4)
  starts = ClientModels(centers, jnp.array(choice))
  want = trained(local._replace(shared_start='off'), data, starts=starts)
  got = trained(local, data, starts=starts)
  chex.assert_trees_all_close(got, want, rtol=1e-3, atol=1e-5)


def test_more_epochs_than_the_schedule_has_end_alike():
  data, local = helpers.federation(SIZES), on(chunk=4)
  starts = ClientModels(tree.expand(helpers.first_model(local)))
  epochs = np.array([3, 1, 2, 3, 1, 3, 2, 1], np.int32)[: len(SIZES)]

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def run(known, mode, epochs):
    epochs = np.asarray(known) if known else epochs
    settings, cohort = local._replace(shared_start=mode), helpers.everyone(data)
    return train_cohort(
      settings, starts, data, cohort, jax.random.key(3), epochs=epochs
    )

  want, got = (run(tuple(epochs), mode, epochs) for mode in ('off', 'on'))
  assert want.steps[0] == 3 * -(-SIZES[0] // local.schedule.batch_size)
  chex.assert_trees_all_close(got.params, want.params, rtol=1e-4, atol=1e-6)
  chex.assert_trees_all_close(got.loss, want.loss, rtol=1e-4)
  assert got.finite.all()
  # Where a compiled round computes them, clients with more than the schedule's fail.
  for mode in ('off', 'on'):
    cut = run((), mode, epochs)
    assert cut.finite.tolist() == (epochs == 1).tolist()
    assert np.isfinite(cut.loss).tolist() == (epochs == 1).tolist()


def test_another_function_of_the_same_parameters_is_the_one_that_trains():
  data, local = helpers.federation(SIZES), on()
  blind = local.model._replace(apply=lambda p, x: local.model.apply(p, 0.0 * x))
  assert (blind.apply_with, blind.layers) == (None, ())
  got = trained(local._replace(model=blind), data)
  want = trained(local._replace(model=blind, shared_start='off'), data)
  chex.assert_trees_all_equal(got, want)
  # A kernel whose inputs are all zero stays.
  start = helpers.first_model(local)
  (first, *_) = paths(local, data)
  np.testing.assert_array_equal(
    got.params[first[0]]['kernel'], [start[first[0]]['kernel']] * len(SIZES)
  )
