"""One client's local training again: its steps, and where they end."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import Corruption
from fesem_jax.core.types import Cohort
from fesem_jax.training.cohort import Call, calls_noted, train_cohort
from fesem_jax.training.objective import Correction, Objective
from fesem_jax.training.reduction import mean_of_models
from fesem_jax.training.trajectory import steps_of, task_of
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import unflatten

SIZES = [7, 3, 12, 4]
NOTHING = mean_of_models('uniform')
KEY, PLACE = jax.random.key(3), 2  # Of the client with 12 examples.


def models(count, seed=0):
  init = jax.jit(jax.vmap(helpers.local().model.init))
  return init(jax.random.split(jax.random.key(seed), count))


def vector(stack, row=0):
  return reference.flat(reference.from_params(stack, row))


def followed(local, width, start=None, corruption=None, **objective):
  """The steps of the client, and its task with the end that the round gives it."""
  data = dataclasses.replace(helpers.federation(SIZES), corruption=corruption)
  start = ClientModels(models(1)) if start is None else start
  alone = data.reorder(np.array([PLACE]))

  def again(data, alone):
    with calls_noted() as calls:
      everyone, wanted = helpers.everyone(data), Objective(**objective)
      train_cohort(local, start, data, everyone, KEY, wanted, NOTHING)
    row = jnp.array([PLACE])
    task, without = (task_of(calls[0], data, row, whole) for whole in (True, False))
    assert without.end is without.loss is None
    call = calls[0]._replace(cohort=Cohort(np.zeros(1, np.int32), everyone=False))
    return steps_of(call, task, alone, width), task

  return jax.jit(again)(data, alone)


def spelled_out(local, addition, factors=1.0, epochs=None, start=0):
  """Losses, norms of gradients and distances of float64 SGD, and where it ends."""
  data, schedule = helpers.federation(SIZES), local.schedule
  if epochs is not None:
    schedule = schedule._replace(epochs=epochs)
  model = reference.from_params(models(1 + start), start)
  w = first = reference.flat(model)
  losses, norms, distances = [], [], []
  for x, y in helpers.batches(data, schedule, PLACE, KEY):
    loss, gradient = reference.loss_and_gradient(unflatten(w, model), x, y, factors)
    gradient = reference.flat(gradient)
    losses.append(loss)
    norms.append(np.linalg.norm(gradient))
    w = w - 0.1 * (gradient + addition(len(losses) - 1, w, first))
    distances.append(np.linalg.norm(w - first))
  return losses, norms, distances, w


def check(steps, wanted, rtol=1e-3):
  losses, norms, distances, end = wanted
  taken = len(losses)
  assert int(steps.taken) == taken
  for found, values in (
    (steps.loss, losses), (steps.gradient, norms), (steps.distance, distances),
  ):  # fmt: skip
    np.testing.assert_allclose(found[:taken], values, rtol=rtol)
    assert not np.asarray(found[taken:]).any()
  assert steps.finite.all()
  ends = reference.flat(reference.from_params(steps.end))
  np.testing.assert_allclose(ends, end, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize('applies', [True, False])
def test_a_correction_changes_each_step_if_it_applies(applies):
  local, common, own = helpers.local(epochs=2, chunk=3), models(1, 5), models(4, 6)

  given = Correction(common, own, jnp.bool_(applies))
  steps, task = followed(local, 3, correction=given)
  added = applies * (vector(common) - vector(own, PLACE))
  wanted = spelled_out(local, lambda t, w, first: added)
  check(steps, wanted)
  close = {'rtol': 1e-3, 'atol': 1e-5}
  np.testing.assert_allclose(vector(task.correction), added, **close)
  # The round corrects as much, or as little.
  np.testing.assert_allclose(vector(task.end), wanted[-1], **close)
  np.testing.assert_allclose(task.loss, np.mean(wanted[0]), rtol=1e-3)


def test_penalty_anchor_and_epochs_are_those_of_the_client():
  local, anchors = helpers.local(epochs=2, chunk=3), models(2, 7)
  steps, task = followed(
    local,
    1,
    penalty=jnp.array([0.0, 0.1, 0.4, 0.2]),
    anchor=ClientModels(anchors, jnp.array([0, 0, 1, 0])),
    epochs=jnp.array([2, 2, 1, 2]),
  )
  to = vector(anchors, 1)
  check(steps, spelled_out(local, lambda t, w, first: 0.8 * (w - to), epochs=1))
  np.testing.assert_allclose(task.penalty, [0.4])
  np.testing.assert_allclose(vector(task.anchor), to, rtol=1e-6)


def test_epochs_beyond_the_schedule_are_all_followed():
  local = helpers.local(epochs=1, chunk=3)
  steps, _ = followed(local, 1, epochs=jnp.array([1, 1, 3, 2]))
  check(steps, spelled_out(local, lambda *_: 0.0, epochs=3))


def test_epochs_that_a_round_computes_need_a_bound():
  local, data = helpers.local(), helpers.federation(SIZES)

  @jax.jit
  def again(epochs):
    with calls_noted() as calls:
      everyone, start = helpers.everyone(data), ClientModels(models(1))
      train_cohort(local, start, data, everyone, KEY, Objective(epochs=epochs), NOTHING)
    task = task_of(calls[0], data, jnp.array([PLACE]), whole=False)
    return steps_of(calls[0], task, data, 1)

  with pytest.raises(UserError, match='give the objective `most_epochs`'):
    again(jnp.array([1, 1, 3, 2]))


def test_one_penalty_pulls_all_clients_to_their_own_starts():
  local = helpers.local(epochs=1, chunk=3)
  start = ClientModels(models(2), jnp.array([0, 0, 1, 0]))
  steps, task = followed(local, 3, start, penalty=0.3)
  np.testing.assert_allclose(task.penalty, [0.3], rtol=1e-6)
  assert task.anchor is None
  assert {x.shape[0] for x in jax.tree.leaves((task.start, task.end))} == {1}
  check(steps, spelled_out(local, lambda t, w, first: 0.6 * (w - first), start=1))


def vary(step, params, correction):
  return jax.tree.map(lambda c, w: c / (1.0 + step) + 0.1 * w, correction, params)


@pytest.mark.parametrize('width', [1, 3])
def test_corrections_that_vary_and_factors_of_examples(width):
  local = helpers.local(batch_size=0, epochs=3, chunk=3)  # The order is known.
  common, own = models(1, 5), models(4, 6)
  factors = np.random.default_rng(0).uniform(size=(4, 12)).astype(np.float32)
  correction = Correction(common, own, True, vary)
  steps, task = followed(local, width, correction=correction, factors=factors)
  np.testing.assert_array_equal(task.factors, factors[PLACE : PLACE + 1])
  difference = vector(common) - vector(own, PLACE)

  def addition(step, w, _):
    return difference / (1 + step) + 0.1 * w

  check(steps, spelled_out(local, addition, factors[PLACE]))


def test_layers_that_do_not_learn_stay_where_they_are():
  local, learns = helpers.local(epochs=1, chunk=3), ('logits',)
  steps, task = followed(local, 3, layers=learns)
  for name in ('dense0', 'logits'):
    for part in ('kernel', 'bias'):
      end, start = steps.end[name][part], task.start[name][part][0]
      np.testing.assert_allclose(end, task.end[name][part][0], rtol=1e-4, atol=1e-6)
      stays = (np.asarray(end) == np.asarray(start)).all()
      assert stays == (name not in learns)
  moved = reference.flat(reference.from_params(steps.end)) - vector(task.start)
  np.testing.assert_allclose(steps.distance[-1], np.linalg.norm(moved), rtol=1e-4)


def test_steps_that_are_not_finite_are_said():
  steps, _ = followed(helpers.local(epochs=2, rate=1e38), 1)
  assert not bool(steps.finite[-1])
  ends = [np.isfinite(x).all() for x in jax.tree.leaves(steps.end)]
  assert not all(ends)


def test_calls_are_noted_within_the_block_alone():
  local, data = helpers.local(), helpers.federation(SIZES)
  start, everyone = ClientModels(models(1)), helpers.everyone(data)
  with calls_noted() as outer:
    jax.eval_shape(lambda d: train_cohort(local, start, d, everyone, KEY), data)
    with calls_noted() as inner:
      jax.eval_shape(lambda d: train_cohort(local, start, d, everyone, KEY), data)
  jax.eval_shape(lambda d: train_cohort(local, start, d, everyone, KEY), data)
  assert len(outer) == len(inner) == 1
  assert outer[0].starts is start
  assert outer[0].cohort is everyone
  assert outer[0].local is local
  assert outer[0].objective == Objective()


def test_a_bad_client_is_followed_to_where_it_ends_and_not_to_what_it_sends():
  bad = Corruption(np.arange(4) == PLACE, 'sign_flip')
  local = helpers.local(chunk=3)
  steps, task = followed(local, 3, corruption=bad)
  end = spelled_out(local, lambda t, w, first: 0.0 * w)[-1]
  np.testing.assert_allclose(vector(task.end), end, rtol=1e-3, atol=1e-5)
  assert int(steps.taken) == 3
  assert {x.shape[0] for x in jax.tree.leaves((task.start, task.end))} == {1}


def test_corrections_that_a_method_replaces_are_left_as_they_are():
  local, data = helpers.local(chunk=3), helpers.federation(SIZES)
  given = Correction(models(1, 5), models(4, 6), True, None, True)
  call = Call(
    local,
    ClientModels(models(1)),
    helpers.everyone(data),
    KEY,
    Objective(None, None, given),
  )
  task = jax.eval_shape(lambda d: task_of(call, d, jnp.array([PLACE]), True), data)
  assert {x.shape[0] for x in jax.tree.leaves((task.end, task.correction))} == {1}
