"""Local training of one client: transformations, layers, steps of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.core import batching, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.one_client import LocalModel, for_each_batch
from tests.support import helpers, reference
from tests.support.methods import assert_close, unflatten

SIZES = [6, 3, 8, 5]
KEY = jax.random.key(3)


def train(local, data, starts, **options):
  run = jax.jit(
    lambda data: helpers.trained_cohort(
      local, starts, data, helpers.everyone(data), KEY, **options
    )
  )
  return run(data)


def trained_by(one, local, starts, data, **options):
  """What a compiled round of a function of one client returns."""

  @jax.jit
  def run(starts, data, options):
    everyone = helpers.everyone(data)
    return for_each_client(one, local, starts, data, everyone, KEY, **options)

  return run(starts, data, options)


def test_transformations_of_gradients_come_before_the_optimizer_in_their_order():
  data, local = helpers.federation(SIZES), helpers.local(epochs=2, chunk=3)
  start, personal = (
    helpers.first_models(local, 1),
    helpers.first_models(local, 4, seed=7),
  )

  def fading(correction):
    def update(grads, step, params):
      def add(g, c, w):
        return g + c / (1.0 + step) + 0.1 * w

      return jax.tree.map(add, grads, correction, params), step + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)

  def one(client):
    model = local_sgd(client, fading(client.inputs), optax.scale(2.0))
    return model, model.params, None

  trained = trained_by(one, local, ClientModels(start), data, inputs=personal)

  def want(i, step, w, gradient):
    mine = reference.flat(reference.from_params(personal, i))
    return 2 * (gradient + mine / (1 + step) + 0.1 * w)

  for i in range(len(SIZES)):
    model = reference.from_params(start, 0)
    w = reference.flat(model)
    for step, (x, y) in enumerate(helpers.batches(data, local.schedule, i, KEY)):
      _, gradient = reference.loss_and_gradient(unflatten(w, model), x, y)
      w = w - 0.1 * want(i, step, w, reference.flat(gradient))
    assert_close(reference.flat(reference.from_params(trained.params, i)), w, rtol=1e-3)


def test_clients_of_very_unequal_sizes_match_the_reference():
  sizes = [2, 200, 3, 1, 0, *[2] * 10]
  data, local = helpers.federation(sizes), helpers.local(2, chunk=len(sizes))
  assert batching.are_unequal(local.schedule, data)
  start = helpers.first_models(local, 1)
  trained = train(local, data, ClientModels(start))
  assert trained.steps.tolist() == [-(-size // 2) for size in sizes]
  for i in np.flatnonzero(sizes):
    batches = helpers.batches(data, local.schedule, i, KEY)
    model, loss = reference.local_sgd(reference.from_params(start, 0), batches, 0.1)
    got = reference.flat(reference.from_params(trained.params, i))
    assert_close(got, reference.flat(model), rtol=1e-3)
    assert_close(trained.loss[i], loss, rtol=1e-4)


def test_only_the_named_layers_learn():
  data = helpers.federation(SIZES)
  local = helpers.local(epochs=2, chunk=3, hidden=(5, 4))
  start = helpers.first_models(local, 1)
  trained = train(local, data, ClientModels(start), layers=('dense1',), penalty=0.3)
  model = reference.from_params(start, 0)
  sizes = [sum(part.size for part in layer) for layer in model]
  learns = np.repeat([0.0, 1.0, 0.0], sizes)
  for i in range(len(SIZES)):
    batches = helpers.batches(data, local.schedule, i, KEY)
    w = first = reference.flat(model)
    for x, y in batches:
      _, gradient = reference.loss_and_gradient(unflatten(w, model), x, y)
      w = w - 0.1 * learns * (reference.flat(gradient) + 0.6 * (w - first))
    assert_close(reference.flat(reference.from_params(trained.params, i)), w, rtol=1e-3)
  for name in ('dense0', 'logits'):
    np.testing.assert_array_equal(
      trained.params[name]['kernel'],
      tree.repeat(tree.unstack(start, 0), 4)[name]['kernel'],
    )


# Outputs w x, whose mean is the loss.
LINEAR = Model(
  lambda key: {'w': jnp.ones(())}, lambda p, x: p['w'] * x[:, 0], lambda z, y: z
)


def test_a_client_whose_loss_or_model_is_not_finite_has_failed_with_steps_of_its_own():
  def take(step, params, memory, gradient):
    loss, _ = gradient(params)
    return {'w': params['w'] + jnp.where(loss < 0, jnp.nan, 1.0)}, memory, loss

  def one(client):
    model = for_each_batch(client, client.start, (), take)
    return model, model.params, None

  data = FederatedData.from_arrays(np.ones((3, 1)), np.zeros(3, int), [1, 1, 1])
  x = np.array([[2.0], [np.inf], [-2.0]], np.float32)
  data = dataclasses.replace(data, x=x)
  local = helpers.local(chunk=3)._replace(model=LINEAR)
  start = ClientModels({'w': jnp.ones(1)})
  trained = trained_by(one, local, start, data)
  assert trained.finite.tolist() == [True, False, False]
  assert trained.params['w'].tolist() == [2, 1, 1]


@pytest.mark.parametrize('value', [jnp.nan, jnp.inf])
def test_an_optimizer_that_mends_one_layer_leaves_the_other_large_one_sound(value):
  """The gradient of one layer is not finite; that of the other one is 1."""
  shape = (70, 70)  # Of a large layer.

  def init(key):
    return {'bad': jnp.zeros(shape), 'good': jnp.zeros(shape)}

  @jax.custom_gradient
  def spoiled(w):
    return 0.0 * w, lambda g: jnp.full_like(w, value)

  def apply(params, x):
    total = spoiled(params['bad']).sum() + params['good'].sum()
    return jnp.broadcast_to(total, (x.shape[0], helpers.CLASSES))

  optimizer = optax.chain(optax.zero_nans(), optax.clip(1.0), optax.sgd(0.5))
  model = Model(init, apply, lambda outputs, y: outputs[:, 0])
  local = helpers.local(batch_size=0, optimizer=optimizer)._replace(model=model)
  data = helpers.federation(SIZES)
  trained = train(local, data, ClientModels(tree.expand(init(KEY))))
  np.testing.assert_array_equal(trained.params['good'], np.full((4, *shape), -0.5))
  bad = 0.0 if np.isnan(value) else -0.5
  np.testing.assert_array_equal(trained.params['bad'], np.full((4, *shape), bad))
  assert trained.finite.all()


def test_two_trainings_of_a_client_draw_different_noise():
  data = helpers.federation(SIZES)
  noisy = optax.chain(optax.add_noise(1.0, 0.0, 0), optax.sgd(0.1))
  local = helpers.local(optimizer=noisy)

  def one(client):
    first, second = local_sgd(client), local_sgd(client)
    return second.after(first), first.params, second.params

  start = ClientModels(helpers.first_models(local, 1))
  trained = trained_by(one, local, start, data)
  apart = tree.row_distances(trained.params, trained.state)
  assert (np.asarray(apart) > 1e-3).all()


def test_a_client_fails_with_either_of_its_trainings():
  """As those of Ditto, FedRep and FedALA, of which it sends one."""
  sound, failed = (LocalModel(None, 0.0, finite, 2) for finite in (True, False))
  result = [a.after(b) for a, b in ((sound, sound), (sound, failed), (failed, sound))]
  assert [both.finite for both in result] == [True, False, False]
  assert [both.steps for both in result] == [4, 4, 4]
