"""Clipping and noise, of clients and of the server's sums, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, chained
from fesem_jax.core import sums
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.sending import Sends
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.privacy import differential_privacy, noised
from tests.support import helpers
from tests.support.methods import assert_close, matrix
from tests.support.nights import rest_by_night

SIZES = [6, 3, 9, 5, 8, 4]
KEY = jax.random.key(3)


def data_of(sizes=SIZES):
  return helpers.federation(sizes, groups=np.arange(len(sizes)) % 2)


def local_of(where=None, clip=0.02, noise=0.0, **layout):
  local = helpers.local(model='logistic', **layout)
  if where is None:
    return local
  return local._replace(sends=differential_privacy(clip, noise, where=where, delta=0))


def sent(local, data, key=KEY):
  """The start [P], and the models that clients send [S, P]."""
  start = helpers.first_model(local)
  starts = ClientModels(jax.tree.map(lambda x: x[None], start))
  train = jax.jit(lambda data, key: train_cohort(
    local, starts, data, helpers.everyone(data), key
  ).params)  # fmt: skip
  return matrix(starts.shared)[0], matrix(train(data, key))


def clipped(changes, clip):
  lengths = np.linalg.norm(changes, axis=1, keepdims=True)
  return changes * np.minimum(1, clip / lengths)


def test_noise_of_clients_has_the_moments_of_a_normal_distribution():
  data = data_of([2] * 400)
  start, plain = sent(local_of(), data)
  _, result = sent(local_of('client', 0.1, 1.5), data)
  noise = (result - start - clipped(plain - start, 0.1)) / 0.15
  count = noise.size  # Bounds of four standard errors.
  assert abs(noise.mean()) < 4 / np.sqrt(count)
  assert abs(noise.var() - 1) < 4 * np.sqrt(2 / count)
  assert abs((noise**4).mean() - 3) < 4 * np.sqrt(96 / count)
  between = np.corrcoef(noise[::2].ravel(), noise[1::2].ravel())[0, 1]
  assert abs(between) < 4 / np.sqrt(count / 2)
  _, again = sent(local_of('client', 0.1, 1.5), data, jax.random.key(4))
  assert np.abs(again - result).min() > 0  # Another round, other noise.


def test_noise_depends_on_the_client_and_the_round_alone():
  data, layout = data_of(), {'chunk': 3, 'devices': 2}
  assert_close(
    sent(local_of('client', 0.1, 1.0), data)[1],
    sent(local_of('client', 0.1, 1.0, **layout), data)[1],
  )


def one_round(algorithm, data, key=KEY):
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  new, info = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  return state, new, info


def test_the_server_adds_noise_to_the_sum_of_clipped_changes():
  data, clip = data_of(), 0.05
  whole = {'batch_size': 0}  # Every round is the same but for its noise.
  start, models = sent(local_of(**whole), data)
  made = algorithms.build(
    'fed_avg', local_of('server', clip, 2.0, **whole), weighting='uniform'
  )
  mean = start + clipped(models - start, clip).mean(axis=0)
  state, step = jax.jit(made.init)(jax.random.key(0), data), jax.jit(made.step)
  keys = [jax.random.fold_in(KEY, r) for r in range(200)]
  rounds = [step(state, data, helpers.everyone(data), key)[0].params for key in keys]
  noise = np.concatenate([matrix(new) for new in rounds]) - mean
  std, count = 2.0 * clip / len(SIZES), noise.size  # z C / S
  assert abs(noise.mean()) < 4 * std / np.sqrt(count)
  assert abs(noise.var() / std**2 - 1) < 4 * np.sqrt(2 / count)


def test_the_noise_of_the_server_depends_on_the_round_alone():
  data, layout = data_of(), {'chunk': 3, 'devices': 2}
  result = [
    matrix(one_round(
      algorithms.build('fed_avg', local_of('server', 0.1, 1.0, **more),
                       weighting='uniform'), data)[1].params)
    for more in ({}, layout)
  ]  # fmt: skip
  assert_close(*result)


def test_each_center_gets_noise_of_its_own_but_not_one_without_clients():
  stack = {'w': jnp.asarray(np.random.default_rng(0).normal(size=(6, 4000)))}
  origins = {'w': jnp.zeros((3, 4000))}
  cluster, ones = jnp.array([0, 0, 0, 0, 1, 1]), jnp.ones(6)
  with sums.clipped(2.0):
    total = sums.cluster_sums(stack, cluster, ones, origins)
  rows = clipped(np.asarray(stack['w'], np.float64), 2.0)
  expected = np.stack([rows[:4].sum(axis=0), rows[4:].sum(axis=0), np.zeros(4000)])
  assert_close(total.params['w'], expected)
  np.testing.assert_array_equal(total.weight, [4, 2, 0])
  privacy = differential_privacy(2.0, 0.5, delta=0).privacy
  noise = noised(privacy, KEY, (total,))[0].params['w'] - total.params['w']
  np.testing.assert_allclose(np.std(noise, axis=1), [1, 1, 0], rtol=0.05)
  assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.07


@pytest.mark.parametrize('client_state', rest_by_night(['stacked', 'streamed']))
def test_centers_of_fesem_are_means_of_changes_that_are_clipped(client_state):
  """Of a client that moves, what is clipped is its distance to its new center."""
  data, clip = data_of(), 0.03
  options = {'num_clusters': 2, 'prox_lambda': 0.0, 'client_state': client_state}
  made = algorithms.build('fesem', local_of('server', clip), **options)
  state, new, _ = one_round(made, data)
  old, assignment = matrix(state.centers), np.asarray(new.assignment)
  local = local_of()
  starts = ClientModels(state.centers, state.assignment)
  models = matrix(train_cohort(
    local, starts, data, helpers.everyone(data), KEY
  ).params)  # fmt: skip
  result = matrix(new.centers)
  for k in range(2):
    apart = clipped(models[assignment == k] - old[k], clip)
    expected = old[k] + (apart.mean(axis=0) if len(apart) else 0)
    assert_close(result[k], expected, atol=1e-6)


def test_the_first_centers_of_fesem_have_noise_too():
  data, options = data_of(), {'num_clusters': 2, 'init_epochs': 1}

  def first(noise, **more):
    local = local_of('server', 0.05, noise)
    made = algorithms.build('fesem', local, **options, **more)
    return matrix(jax.jit(made.init)(jax.random.key(0), data).centers)

  for more in ({}, {'init_models': 'by_loss'}):
    difference = first(3.0, **more) - first(0.0, **more)
    assert np.abs(difference).max() > 0.05


def test_a_hook_of_ones_own_gets_key_start_and_model():
  data = data_of()

  def half(key, start, trained):
    del key
    return jax.tree.map(lambda s, w: s + (w - s) / 2, start, trained)

  start, plain = sent(local_of(), data)
  _, result = sent(local_of()._replace(sends=Sends(half)), data)
  assert_close(result - start, (plain - start) / 2, atol=1e-6)
  # First half of the change, then clipped: noise comes first of what is chained.
  private = differential_privacy(1e-3, 0.0, where='client', delta=0)
  _, result = sent(local_of()._replace(sends=chained(private, Sends(half))), data)
  assert_close(result - start, clipped(plain - start, 1e-3) / 2, atol=1e-7)
