"""One client's local training again: its steps, and where they end."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import Corruption
from fesem_jax.core.types import Cohort
from fesem_jax.training.calls import calls_noted
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.training.local_sgd import local_sgd, plus
from fesem_jax.training.trained import Reduction
from fesem_jax.training.trajectory import steps_of, task_of
from tests.support import helpers, reference
from tests.support.methods import unflatten

SIZES = [7, 3, 12, 4]
KEY, PLACE = jax.random.key(3), 2  # Of the client with 12 examples.


def models(count, seed=0):
  init = jax.jit(jax.vmap(helpers.local().model.init))
  return init(jax.random.split(jax.random.key(seed), count))


def vector(stack, row=0):
  return reference.flat(reference.from_params(stack, row))


def followed(local, width, start=None, corruption=None, one=None, **options):
  """Steps taken, trainings of the client, and where they end in the round."""
  data = dataclasses.replace(helpers.federation(SIZES), corruption=corruption)
  start = ClientModels(models(1)) if start is None else start
  alone = data.reorder(np.array([PLACE]))

  def again(data, alone):
    with calls_noted() as calls:
      args = local, start, data, helpers.everyone(data), KEY
      reduction = Reduction(keep=False)
      if one is None:
        train_cohort(*args, reduction, **options)
      else:
        for_each_client(one, *args, reduction, **options)
    row = jnp.array([PLACE])
    task, without = (task_of(calls[0], data, row, whole) for whole in (True, False))
    assert without.ends is None
    call = calls[0]._replace(cohort=Cohort(np.zeros(1, np.int32), everyone=False))
    trainings = steps_of(call, task, alone, width)
    return trainings[0].taken, trainings, task.ends

  return jax.jit(again)(data, alone)


def spelled_out(local, addition, factors=1.0, epochs=None, start=0, begin=None):
  """Losses, norms of gradients and distances of float64 SGD, and where it ends."""
  data, schedule = helpers.federation(SIZES), local.schedule
  if epochs is not None:
    schedule = schedule._replace(epochs=epochs)
  model = reference.from_params(models(1 + start), start)
  w = first = reference.flat(model) if begin is None else begin
  losses, norms, distances = [], [], []
  for x, y in helpers.batches(data, schedule, PLACE, KEY):
    loss, gradient = reference.loss_and_gradient(unflatten(w, model), x, y, factors)
    gradient = reference.flat(gradient)
    losses.append(loss)
    norms.append(np.linalg.norm(gradient))
    w = w - 0.1 * (gradient + addition(len(losses) - 1, w, first))
    distances.append(np.linalg.norm(w - first))
  return losses, norms, distances, w


def check(taken, again, wanted, rtol=1e-3):
  losses, norms, distances, end = wanted
  assert int(taken) == len(losses)
  for found, values in zip(again.steps.T, (losses, norms, distances), strict=False):
    np.testing.assert_allclose(found[:taken], values, rtol=rtol)
    assert not np.asarray(found[taken:]).any()
  assert again.steps[:taken, 3].all()
  ends = reference.flat(reference.from_params(again.last))
  np.testing.assert_allclose(ends, end, rtol=rtol, atol=1e-5)


def own_of(stack):
  return reference.flat(reference.from_params(stack))


def test_a_client_with_two_trainings_of_which_the_second_is_corrected():
  local, own = helpers.local(epochs=2, chunk=3), models(4, 6)

  def one(client):
    first = local_sgd(client)
    second = local_sgd(client, plus(client.given), start=client.state)
    return second.after(first), first.params, client.state

  state = models(4, 9)
  taken, again, ends = followed(local, 3, one=one, given=own, state=state)
  for training, end, (addition, start) in zip(
    again, ends, ((0.0, None), (vector(own, PLACE), vector(state, PLACE))), strict=True
  ):
    wanted = spelled_out(local, lambda t, w, first, a=addition: a, begin=start)
    check(taken, training, wanted)
    # The round ends where the steps do.
    np.testing.assert_allclose(own_of(end), wanted[-1], rtol=1e-3, atol=1e-5)


def test_penalty_and_epochs_are_those_of_the_client():
  local = helpers.local(epochs=2, chunk=3)
  taken, (again,), _ = followed(
    local, 1, penalty=jnp.array([0.0, 0.1, 0.4, 0.2]), epochs=jnp.array([2, 2, 1, 2])
  )
  wanted = spelled_out(local, lambda t, w, first: 0.8 * (w - first), epochs=1)
  check(taken, again, wanted)


def test_epochs_beyond_the_schedule_are_all_followed():
  local = helpers.local(epochs=1, chunk=3)
  taken, (again,), _ = followed(local, 1, epochs=jnp.array([1, 1, 3, 2]))
  check(taken, again, spelled_out(local, lambda *_: 0.0, epochs=3))


def test_factors_of_examples_are_those_of_the_client():
  local = helpers.local(batch_size=0, epochs=3, chunk=3)  # The order is known.
  factors = np.random.default_rng(0).uniform(size=(4, 12)).astype(np.float32)
  taken, (again,), _ = followed(local, 3, factors=factors)
  wanted = spelled_out(local, lambda t, w, first: 0.0 * w, factors[PLACE])
  check(taken, again, wanted)


def test_layers_that_do_not_learn_stay_where_they_are():
  local, learns = helpers.local(epochs=1, chunk=3), ('logits',)
  taken, (again,), (in_round,) = followed(local, 3, layers=learns)
  for name in ('dense0', 'logits'):
    for part in ('kernel', 'bias'):
      end, start = again.last[name][part], again.start[name][part]
      np.testing.assert_allclose(end, in_round[name][part], rtol=1e-4, atol=1e-6)
      stays = (np.asarray(end) == np.asarray(start)).all()
      assert stays == (name not in learns)
  moved = own_of(again.last) - own_of(again.start)
  np.testing.assert_allclose(
    again.steps[taken - 1, 2], np.linalg.norm(moved), rtol=1e-4
  )


def test_steps_that_are_not_finite_are_said():
  taken, (again,), _ = followed(helpers.local(epochs=2, rate=1e38), 1)
  assert again.steps[taken - 1, 3] == 0
  assert not all(np.isfinite(x).all() for x in jax.tree.leaves(again.last))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(again.end))


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


def test_a_round_with_other_epochs_ends_as_it_is_trained_from_a_shared_start():
  local = helpers.local(chunk=3)._replace(shared_start='on')
  _, _, (in_round,) = followed(local, 1, epochs=jnp.array([1, 1, 3, 2]))
  data, epochs = helpers.federation(SIZES), jnp.array([1, 1, 3, 2])
  start = ClientModels(models(1))
  whole = jax.jit(
    lambda d: train_cohort(local, start, d, helpers.everyone(d), KEY, epochs=epochs)
  )(data)
  end = jax.tree.map(lambda x: x[PLACE], whole.params)
  jax.tree.map(np.testing.assert_array_equal, in_round, end)


def test_a_bad_client_is_followed_to_where_it_ends_and_not_to_what_it_sends():
  bad = Corruption(np.arange(4) == PLACE, 'sign_flip')
  local = helpers.local(chunk=3)
  taken, _, (in_round,) = followed(local, 3, corruption=bad)
  end = spelled_out(local, lambda t, w, first: 0.0 * w)[-1]
  np.testing.assert_allclose(own_of(in_round), end, rtol=1e-3, atol=1e-5)
  assert int(taken) == 3
