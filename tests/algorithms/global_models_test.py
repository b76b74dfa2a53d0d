"""Methods of one global model, beside reference_test."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common import global_model, stragglers
from fesem_jax.core import sums
from fesem_jax.core.types import Cohort
from fesem_jax.server import robust
from fesem_jax.training import step_lengths
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.utils.errors import UserError
from tests.support import draws, helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_gradient,
  run,
)
from tests.support.rounds import length_of_steps
from tests.support.runs import simulate

# Centralized training.


SUM = sum(SIZES)


def test_runs_are_the_same_on_two_devices():
  data, results = federation(), []
  for devices in (1, 2):
    algorithm = algorithms.build(
      'centralized', helpers.local(devices=devices, hidden=())
    )
    placement = 'sharded' if devices == 2 else 'replicated'
    result = simulate(algorithm, data, data, rounds=2, data_placement=placement)
    results.append(result)
  one, two = (r.deployed.params() for r in results)
  chex.assert_trees_all_close(one, two, rtol=1e-5, atol=1e-6)
  costs = results[0].summary['costs']
  # All examples go up once: 6 features and a label of 4 bytes each.
  assert costs['bytes_up'] == SUM * 7 * 4
  assert costs['bytes_down'] == 0


# FedDANE.


def test_without_a_gradient_of_the_first_cohort_nothing_is_corrected():
  data, rate = federation(), 0.5
  local = helpers.local(hidden=())._replace(dropout_rate=rate)
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  average = algorithms.build('fed_avg', local, weighting='uniform')
  cohort = Cohort(np.array([1], np.int32), everyone=False)
  for key in jax.random.split(jax.random.key(0), 100):
    (first,) = draws.first_cohort(key, data, 1)
    first_drops = draws.drops_out(key, data, first, rate)
    if first_drops and not draws.drops_out(key, data, 1, rate):
      break
  state = initial(algorithm, data)
  got, info = jax.jit(algorithm.step)(state, data, cohort, key)
  start = initial(average, data)._replace(params=state.params)
  want, _ = jax.jit(average.step)(start, data, cohort, key)
  assert int(info.trained) == 1
  jax.tree.map(np.testing.assert_allclose, got.params, want.params)


def test_one_client_in_each_cohort_is_enough_to_correct_by():
  # Of one full-batch step: c - rate * (g_2 + g_1 - g_2), g_1 of the first cohort.
  data = helpers.federation([6, 4, 1])
  local = helpers.local(batch_size=0, steps=1, hidden=())
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  key = next(
    k for k in map(jax.random.key, range(99)) if draws.first_cohort(k, data, 1) != [2]
  )
  cohort = Cohort(np.array([2], np.int32), everyone=False)
  after, _ = jax.jit(algorithm.step)(state, data, cohort, key)
  (first,) = draws.first_cohort(key, data, 1)
  want = reference.flat(model) - 0.1 * reference_gradient(model, data, first)
  assert_close(reference.flat(reference.from_params(after.params, 0)), want)


# FedOpt.


@functools.partial(jax.jit, static_argnums=0)
def moved_by(averaging, weight=1.0, finite=(True, True, True)):
  """The model 1 after a round of momentum 8 whose clients have models 3, 5 and 9."""
  trained = helpers.trained(
    {'w': jnp.array([[3.0], [5.0], [9.0]])},
    finite=jnp.array(finite),
    sums=sums.ClusterSums({'w': jnp.array([[2.0 * weight]])}, jnp.array([weight])),
  )
  state = global_model.GlobalState(
    {'w': jnp.ones((1, 1))},
    (optax.TraceState({'w': jnp.full((1, 1), 8.0)}), optax.EmptyState()),
  )
  after, _ = global_model.train_and_average(
    helpers.local(), state, None, None, None, averaging, lambda *args: trained
  )
  return after.params['w'][0, 0]


def test_one_client_is_enough_for_a_step_of_the_server_and_none_is_not():
  averaging = global_model.Averaging('uniform', optax.sgd(1.0, momentum=0.5))
  # 1 - (0.5 * 8 - 2), where the mean is 3.
  assert moved_by(averaging) == -1
  assert moved_by(averaging, weight=0.0) == 1
  # By the median of two models where one client failed: 1 - (0.5 * 8 - 3).
  median = averaging._replace(aggregation=robust.aggregation('median'))
  assert moved_by(median, finite=(True, True, False)) == 0
  assert moved_by(median, finite=(False, False, False)) == 1


# FedSGD.


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.adam(1e-9),
    optax.adamw(0.1),
    # Short gradients are not clipped.
    optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(0.1)),
    local_optimizer('sgd', 0.1, weight_decay=1e-9),
    # Of one layer alone.
    optax.partition(
      {'sgd': optax.sgd(0.1), 'adam': optax.adam(0.1)},
      {'dense0': 'sgd', 'logits': 'adam'},
    ),
  ],
)
def test_a_gradient_step_needs_an_optimizer_that_follows_the_gradient(optimizer):
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('fed_sgd', helpers.local(optimizer=optimizer))


@pytest.mark.parametrize('optimizer', [
    optax.sgd(0.1),
    optax.sgd(0.1, momentum=0.9, nesterov=True),
    optax.sgd(optax.cosine_decay_schedule(0.1, 9)),
    optax.masked(optax.sgd(0.1), lambda p: {name: name != 'logits' for name in p}),
])  # fmt: skip
def test_first_steps_that_are_linear_are_gradient_steps(optimizer):
  local = helpers.local(optimizer=optimizer)
  assert algorithms.build('fed_sgd', local).local is local


# Per-FedAvg.


RATE = 0.1


# SCAFFOLD.


def test_a_round_at_rate_0_leaves_everything_as_it_is():
  data = federation()
  local = helpers.local()._replace(
    lr_schedule=lambda number: jax.numpy.where(number == 0, 1.0, 0.0)
  )
  algorithm = algorithms.build('scaffold', local)
  state, _ = run(algorithm, data, rounds=1, cohort=lambda r: numbered(data, 0))
  after, info = jax.jit(algorithm.step)(
    state, data, numbered(data, 1), jax.random.key(5)
  )
  assert int(info.failed) == 0
  assert np.abs(np.asarray(state.control['logits']['kernel'])).max() > 0
  chex.assert_trees_all_equal(state, after)


def numbered(data, number):
  ids = np.arange(data.num_clients, dtype=np.int32)
  return Cohort(ids, everyone=True, round=np.int32(number))


# FedNova.


def test_stragglers_are_those_of_fed_prox():
  data, local = federation(), helpers.local(epochs=4, hidden=())
  (_, nova), (_, prox) = (
    run(algorithms.build(name, local, straggler_fraction=0.5), data, rounds=2)
    for name in ('fed_nova', 'fed_prox')
  )
  assert [int(i.steps) for i in nova] == [int(i.steps) for i in prox]
  assert int(nova[0].steps) != int(nova[1].steps)


def test_where_all_straggle_each_draws_its_epochs_and_where_none_does_all_are_done():
  data, local, key = federation(), helpers.local(epochs=4), jax.random.key(7)
  everyone = helpers.everyone(data)
  result = stragglers.epochs(local, data, everyone, key, 1.0)
  assert result.tolist() == [draws.epochs_of(key, data, i, 1.0, 4) for i in range(6)]
  assert stragglers.epochs(local, data, everyone, key, 0.0) is None


def test_lengths_of_steps_are_those_of_the_paper():
  local = helpers.local(optimizer=optax.sgd(RATE, 0.6))
  expected = [RATE * length_of_steps(steps, 0.6) for steps in range(6)]
  assert_close(step_lengths.lengths(local, 5), expected, rtol=1e-6)
  local = helpers.local()._replace(local_lr_schedule=lambda step: 1.0 / (step + 1))
  expected = RATE * np.array([0, 1, 1 + 1 / 2, 1 + 1 / 2 + 1 / 3])
  assert_close(step_lengths.lengths(local, 3), expected, rtol=1e-6)
  nesterov = helpers.local(optimizer=optax.sgd(RATE, 0.5, nesterov=True))
  expected = RATE * np.array([0, 1.5, 1.5 + 1.75])  # g + rho v, v = g, then 1.5 g.
  assert_close(step_lengths.lengths(nesterov, 2), expected, rtol=1e-6)


def biases_only(params):
  return jax.tree.map(lambda x: jnp.ndim(x) == 1, params)


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.sgd(0.0),
    optax.sgd(optax.cosine_decay_schedule(0.1, 10), 0.9),
    local_optimizer('momentum', 0.1, weight_decay=0.01),
    local_optimizer('sgd', 0.1, clip_norm=1.0),
    optax.chain(optax.masked(optax.scale(0.5), biases_only), optax.sgd(0.1)),
  ],
  ids=['adam', 'zero', 'schedule', 'decay', 'clipping', 'layers'],
)
def test_steps_must_add_up_gradients(optimizer):
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('fed_nova', helpers.local(optimizer=optimizer))
