import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.global_model import GlobalState
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from fesem_jax.core.types import Cohort
from fesem_jax.models import dense_layers
from tests.support import helpers, reference
from tests.support.nights import rest_by_night

SIZES = [7, 1, 12, 4, 9]
SCHEDULES = [
  Schedule(4, epochs=2),  # Partial last batches.
  Schedule(0, epochs=3),  # Full batch.
  Schedule(3, steps=5),  # Steps that end inside an epoch.
  Schedule(100, epochs=2),  # Batches larger than any client.
]


@functools.cache
def start_of():
  """The start [1, ...] of the model that all tests here train."""
  return tree.expand(jax.jit(helpers.local().model.init)(jax.random.key(0)))


def train(local, data, key=None, starts=None, cohort=None, **kwargs):
  cohort = helpers.everyone(data) if cohort is None else cohort
  starts = ClientModels(start_of()) if starts is None else starts
  key = jax.random.key(3) if key is None else key
  run = jax.jit(
    lambda starts, data, key: helpers.trained_cohort(
      local, starts, data, cohort, key, **kwargs
    )
  )
  return run(starts, data, key)


@pytest.mark.parametrize(
  ('schedule', 'shared_start', 'chunk'),
  [
    (SCHEDULES[0], 'off', 3),
    (SCHEDULES[1], 'off', 1),
    (SCHEDULES[2], 'on', 3),
    (SCHEDULES[3], 'on', 3),
  ],
)
def test_weighted_losses_match_float64_reference(schedule, shared_start, chunk):
  data, key = helpers.federation(SIZES), jax.random.key(3)
  local = helpers.local(chunk=chunk)
  local = local._replace(schedule=schedule, shared_start=shared_start)
  factors = np.random.default_rng(0).uniform(size=(5, 12)).astype(np.float32)
  trained = train(local, data, key, factors=factors)
  start = reference.from_params(start_of(), 0)
  numbers = np.concatenate([np.arange(n) for n in SIZES]).astype(np.int32)
  numbered = dataclasses.replace(data, y=numbers)
  for i in range(len(SIZES)):
    (x, y), batches = data.client(i), []
    for _, rows in helpers.batches(numbered, schedule, i, key):
      batches.append((x[rows], y[rows], factors[i, rows]))
    want, loss = reference.local_sgd(start, batches, 0.1)
    got = reference.from_params(trained.params, i)
    np.testing.assert_allclose(
      reference.flat(got), reference.flat(want), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(trained.loss[i], loss, rtol=1e-4)


@pytest.mark.parametrize(
  ('schedule', 'prox', 'shared_start'),
  rest_by_night(
    [
      (SCHEDULES[0], 0.3, 'off'),
      (SCHEDULES[2], None, 'on'),
      *((s, 0.3, 'off') for s in SCHEDULES[1:]),
      (SCHEDULES[0], 0.3, 'on'),
      (SCHEDULES[1], 0.3, 'on'),
    ],
    by_day=2,
  ),
)
@pytest.mark.optimized
def test_matches_float64_reference(schedule, prox, shared_start):
  data = helpers.federation(SIZES)
  local = helpers.local(chunk=3)._replace(schedule=schedule, shared_start=shared_start)
  key = jax.random.key(3)
  trained = train(local, data, key, penalty=prox)
  start, losses = reference.from_params(start_of(), 0), np.asarray(trained.loss)
  for i in range(len(SIZES)):
    batches = helpers.batches(data, schedule, i, key)
    want, loss = reference.local_sgd(start, batches, 0.1, prox or 0.0)
    got = reference.flat(reference.from_params(trained.params, i))
    np.testing.assert_allclose(got, reference.flat(want), rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(losses[i], loss, rtol=1e-4)


@pytest.mark.optimized
def test_the_mean_of_single_clients_in_full_batches_matches_reference():
  # Optimized, a loop that copied who arrived could not be compiled for a CPU.
  sizes, key = np.array([6, 3, 9, 5, 8, 4, 7, 7, 2, 3]), jax.random.key(3)
  data = helpers.federation(sizes)
  local = helpers.local(batch_size=0, chunk=1, devices=2)._replace(dropout_rate=0.4)
  step = jax.jit(algorithms.build('fed_avg', local).step)
  after, info = step(GlobalState(start_of()), data, helpers.everyone(data), key)
  arrived = np.asarray(info.clients.arrived)
  assert 0 < arrived.sum() < 10
  start = reference.from_params(start_of(), 0)
  models = [
    reference.local_sgd(start, helpers.batches(data, local.schedule, i, key), 0.1)[0]
    for i in np.flatnonzero(arrived)
  ]
  want = np.average(list(map(reference.flat, models)), axis=0, weights=sizes[arrived])
  result = reference.flat(reference.from_params(after.params, 0))
  np.testing.assert_allclose(result, want, rtol=2e-4, atol=2e-6)


def train_with(schedule, chunk, devices):
  local = helpers.local(chunk=chunk, devices=devices)._replace(schedule=schedule)
  return train(local, helpers.federation([*SIZES, 3]), penalty=0.1)


@functools.cache
def in_twos(schedule):
  return train_with(schedule, chunk=2, devices=1)


@pytest.mark.parametrize(
  ('schedule', 'chunk', 'devices'),
  [
    (SCHEDULES[i % len(SCHEDULES)], *how)
    for i, how in enumerate([(1, 1), (6, 1), (3, 2)])
  ],
)
def test_neither_chunk_size_nor_device_count_matters(schedule, chunk, devices):
  chex.assert_trees_all_close(
    in_twos(schedule), train_with(schedule, chunk, devices), rtol=1e-5, atol=1e-6
  )


def test_a_client_trains_alike_in_any_cohort():
  data = helpers.federation(SIZES)
  local = helpers.local(chunk=2)
  everyone = train(local, data)
  some = train(local, data, cohort=Cohort(np.array([4, 1, 5], np.int32), False))

  def kernel(t):
    return t.params['dense0']['kernel']

  np.testing.assert_allclose(
    kernel(some)[:2], kernel(everyone)[jnp.array([4, 1])], rtol=1e-6
  )
  assert some.sizes.tolist() == [9, 1, 0]  # Position 5 is nobody.
  assert some.took_part().tolist() == [True, True, False]
  assert some.steps.tolist() == [3, 1, 0]
  # Its loss is that of its only example, before its only step.
  start = reference.from_params(start_of(), 0)
  loss, _ = reference.loss_and_gradient(start, *data.client(1))
  np.testing.assert_allclose(some.loss[1], loss, rtol=1e-4)


@pytest.mark.parametrize('shared_start', ['off', 'on'])
def test_a_client_that_diverges_keeps_its_start_and_is_reported(shared_start):
  data = helpers.federation([4, 4, 4])
  bad = np.asarray(data.x).copy()
  bad[4:8] = 1e30  # Client 1.
  data = data.__class__(**{**vars(data), 'x': bad})
  local = helpers.local(batch_size=2, epochs=3)._replace(shared_start=shared_start)
  trained = train(local, data)
  assert trained.finite.tolist() == [True, False, True]
  np.testing.assert_array_equal(
    trained.params['dense0']['kernel'][1], start_of()['dense0']['kernel'][0]
  )
  assert np.isfinite(trained.mean_loss())
  assert trained.weights('by_examples').tolist() == [4, 0, 4]
  assert int(trained.info().failed) == 1


def test_an_infinite_loss_of_one_class_leaves_the_gradients_of_the_others():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(7, 9)), jnp.float32)
  kernel = jnp.asarray(rng.normal(size=(9, 10)), jnp.float32)
  slopes = jnp.ones((1, 10)).at[0, 3].set(jnp.inf)

  @jax.jit
  @jax.grad
  def gradient(kernel):
    product = dense_layers.dot_general(x, kernel, (((1,), (0,)), ((), ())))
    return (product * slopes).sum()

  result, others = gradient(kernel), np.arange(10) != 3
  np.testing.assert_allclose(
    result[:, others], np.broadcast_to(x.sum(axis=0)[:, None], (9, 9)), rtol=1e-5
  )
  assert not np.isfinite(result[:, 3]).any()


@pytest.mark.parametrize(
  ('inputs', 'outputs', 'of'),
  [(6, 5, (0, 1)), (9, 10, (0, 1)), (9, 10, (1,)), (100, 50, (0, 1))],
)
def test_small_and_large_dense_layers_have_the_gradients_of_a_product(
  inputs, outputs, of
):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(3, 7, inputs)), jnp.float32)
  kernel = jnp.asarray(rng.normal(size=(3, inputs, outputs)), jnp.float32)

  def gradients(product):
    def loss(x, kernel):
      return jnp.sin(product(x, kernel)).sum()

    return jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=of)))(x, kernel)

  axes = (((1,), (0,)), ((), ()))
  got = gradients(lambda x, kernel: dense_layers.dot_general(x, kernel, axes))
  want = gradients(jnp.matmul)
  chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)
