"""Learning rates over rounds, and losses of the user's own, against float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.core.local_training import Machine, local_training
from fesem_jax.core.types import Cohort
from fesem_jax.run.simulation import simulate
from fesem_jax.training.client_losses import cohort_gradients, cohort_losses
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  run,
  unflatten,
)
from tests.support.nights import rest_by_night

RATES = [1.0, 0.5, 0.125]
ROUNDS = len(RATES)


def listed(number):
  """The rates above as a schedule over rounds."""
  return jnp.asarray(RATES, jnp.float32)[number]


def cohort_of(data):
  """The cohort of each round, all clients, as `simulate` would draw it."""
  ids = np.arange(data.num_clients, dtype=np.int32)
  return lambda number: Cohort(ids, everyone=True, round=np.int32(number - 1))


def test_fed_avg_follows_a_schedule_over_rounds():
  data, local = federation(), helpers.local(epochs=2, devices=2)
  local = local._replace(lr_schedule=listed)
  algorithm = algorithms.build('fed_avg', local)
  model = reference.from_params(initial(algorithm, data).params, 0)
  for number, rate in enumerate(RATES, 1):
    key = jax.random.fold_in(jax.random.key(9), number)
    trained = [
      reference.flat(
        reference.local_sgd(
          model, helpers.batches(data, local.schedule, i, key), 0.1 * rate
        )[0]
      )
      for i in range(len(SIZES))
    ]
    model = unflatten(np.average(trained, axis=0, weights=SIZES), model)
  state, _ = run(algorithm, data, rounds=ROUNDS, cohort=cohort_of(data))
  actual = reference.flat(reference.from_params(state.params, 0))
  assert_close(actual, reference.flat(model))


def test_control_variates_know_the_rate_of_the_round():
  data, local = federation(), helpers.local(epochs=2)
  local = local._replace(lr_schedule=listed)
  algorithm = algorithms.build('scaffold', local)
  model = reference.from_params(initial(algorithm, data).params, 0)
  x, c = reference.flat(model), 0.0
  own = np.zeros((len(SIZES), x.size))
  for number, rate in enumerate(RATES, 1):
    key = jax.random.fold_in(jax.random.key(9), number)
    models, changes = [], []
    for i in range(len(SIZES)):
      batches = helpers.batches(data, local.schedule, i, key)
      correction = unflatten(c - own[i], model)
      start = unflatten(x, model)
      w, _ = reference.local_sgd(start, batches, 0.1 * rate, correction=correction)
      models.append(reference.flat(w))
      changes.append(-c + (x - models[-1]) / (len(batches) * 0.1 * rate))
    own += changes
    x, c = np.mean(models, axis=0), c + np.mean(changes, axis=0)
  state, _ = run(algorithm, data, rounds=ROUNDS, cohort=cohort_of(data))
  for stack, row, expected in (
    (state.params, 0, x),
    (state.control, 0, c),
    (state.client_controls, 1, own[1]),
  ):
    actual = reference.flat(reference.from_params(stack, row))
    assert_close(actual, expected, rtol=1e-3)


@pytest.mark.parametrize(
  'make', rest_by_night([optax.sgd, lambda r: optax.sgd(r, momentum=0.9), optax.adam])
)
def test_a_schedule_is_one_of_the_learning_rate(make):
  data = federation()
  once = np.int32(1)
  cohort = Cohort(np.arange(len(SIZES), dtype=np.int32), everyone=True, round=once)
  states = []
  for rate, schedule in ((0.1, listed), (0.05, None)):
    local = helpers.local(optimizer=make(rate))._replace(lr_schedule=schedule)
    algorithm = algorithms.build('fed_avg', local)
    state, step = initial(algorithm, data), jax.jit(algorithm.step)
    states.append(step(state, data, cohort, jax.random.key(1))[0].params)
  chex.assert_trees_all_close(*states, rtol=1e-5, atol=1e-6)


def test_a_run_follows_its_schedule():
  # The rate of round 2 is 0: the models stay as round 1 left them.
  data = federation()
  local = helpers.local(hidden=())
  local = local._replace(lr_schedule=lambda number: 1.0 - (number == 1))
  ends = []
  for rounds in (1, 2, 3):
    algorithm = algorithms.build('fed_avg', local)
    result = simulate(algorithm, data, data, rounds=rounds, finetune_epochs=0)
    ends.append(reference.vectors(result.state.params))
  np.testing.assert_array_equal(ends[0], ends[1])
  assert np.abs(ends[1] - ends[2]).max() > 1e-3


def squared_error(logits, y):
  """Half the squared distance of the logits to the indicators of the labels."""
  expected = jax.nn.one_hot(y, logits.shape[-1])
  return 0.5 * jnp.square(logits - expected).sum(axis=-1)


def linear_loss_and_gradient(model, x, y):
  """Mean squared error of a linear model and its gradient, float64."""
  (kernel, bias) = model[0]
  error = x @ kernel + bias - np.eye(kernel.shape[1])[y]
  gradient = [(x.T @ error / len(y), error.mean(axis=0))]
  return 0.5 * np.square(error).sum(axis=1).mean(), gradient


def of_squared_error(**options):
  """Local training of a linear model on squared errors."""
  local = helpers.local(hidden=(), **options)
  return local._replace(model=local.model._replace(loss=squared_error))


def test_local_training_minimizes_the_models_own_loss(monkeypatch):
  data, local = federation(), of_squared_error(epochs=2)
  algorithm = algorithms.build('fed_avg', local)
  model = reference.from_params(initial(algorithm, data).params, 0)
  monkeypatch.setattr(reference, 'loss_and_gradient', linear_loss_and_gradient)
  key = jax.random.fold_in(jax.random.key(9), 1)
  ends = [
    reference.local_sgd(model, helpers.batches(data, local.schedule, i, key), 0.1)
    for i in range(len(SIZES))
  ]
  expected = np.average([reference.flat(w) for w, _ in ends], axis=0, weights=SIZES)
  state, infos = run(algorithm, data, rounds=1)
  assert_close(reference.flat(reference.from_params(state.params, 0)), expected)
  loss = np.average([loss for _, loss in ends], weights=SIZES)
  assert_close(infos[0].train_loss, loss)


@pytest.mark.parametrize('chunk', [1, 2])
def test_choices_and_gradients_are_of_the_models_own_loss(chunk):
  data, local = federation(), of_squared_error(chunk=chunk)
  models = helpers.first_models(local, 2)
  losses = cohort_losses(local, models, data, helpers.everyone(data))
  first = jax.tree.map(lambda x: x[:1], models)
  everyone = np.ones(len(SIZES), bool)
  gradients, _ = cohort_gradients(local, first, data, helpers.everyone(data), everyone)
  for i in range(len(SIZES)):
    for k in range(2):
      model = reference.from_params(models, k)
      loss, gradient = linear_loss_and_gradient(model, *data.client(i))
      assert_close(losses[i, k], loss)
      if k == 0:
        actual = reference.flat(reference.from_params(gradients, i))
        assert_close(actual, reference.flat(gradient))


def test_rates_of_rounds_and_steps_multiply():
  local = helpers.local()._replace(lr_schedule=listed)
  ids = np.arange(2)
  during, outside = Cohort(ids, True, np.int32(1)), Cohort(ids, True)
  assert local.rate(during) == 0.5
  assert local.rate(outside) is helpers.local().rate(during) is None
  assert local.rate_of_step(jnp.int32(2), jnp.float32(0.5)) == 0.5
  both = local._replace(local_lr_schedule=lambda step: 1 / (1 + step))
  assert both.rate_of_step(jnp.int32(3), jnp.float32(0.5)) == 1 / 8
  assert both.rate_of_step(jnp.int32(3), None) == 1 / 4
  np.testing.assert_allclose(both.sum_over_steps(jnp.int32(3), 5), 1 + 1 / 2 + 1 / 3)
  np.testing.assert_allclose(both.sum_over_steps(jnp.int32(2), 2), 1 + 1 / 2)
  assert local.sum_over_steps(jnp.int32(3), 5) == 3


@pytest.mark.parametrize(
  ('name', 'good', 'bad'),
  [
    ('batch_size', 0, -1),
    ('batch_size', 1, 1.5),
    ('epochs', 1, 0),
    ('lr_schedule', lambda number: 1e-9 + number, lambda number: 0.0 * number),
    ('optimizer', optax.sgd(0.1), optax.sgd),
    ('model', helpers.local().model, optax.sgd),
    ('clients_per_chunk', 0, -1),
    ('shared_start', 'on', 'yes'),
    ('precision', 'default', 'low'),
  ],
)
def test_arguments_out_of_range_are_refused(name, good, bad):
  local = helpers.local()

  def build(value):
    options = {name: value}
    if name in Machine._fields:
      options = {'machine': Machine(**options)}
    local_training(**{'model': local.model, 'optimizer': local.optimizer} | options)

  build(good)
  with pytest.raises(UserError, match=name):
    build(bad)


@pytest.mark.parametrize(
  ('name', 'value'), [('dropout_rate', 1.0), ('batch_stats', 'none'), ('steps', 1.5)]
)
def test_a_run_refuses_settings_that_were_replaced(name, value):
  data, local = federation(), helpers.local()
  options = {name: value}
  if name == 'steps':
    options = {'schedule': local.schedule._replace(steps=value)}
  algorithm = algorithms.build('fed_avg', local._replace(**options))
  with pytest.raises(UserError, match=name):
    simulate(algorithm, data, data, rounds=1)
