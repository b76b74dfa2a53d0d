"""Methods with personal models."""

import dataclasses

import chex
import flax.linen as nn
import jax
import numpy as np
import optax

from fesem_jax import algorithms, models
from fesem_jax.algorithms.common import personal_head
from fesem_jax.core.types import Cohort
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.training.trained import Reduction
from tests.support import helpers
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
)

# APFL.


def test_alpha_stays_within_its_range():
  # A long step pushes it out at either end.
  data, local = federation(), helpers.local(epochs=4, rate=3.0, hidden=())
  state, _ = run(algorithms.build('apfl', local, apfl_alpha=1.0), data, rounds=4)
  alphas = np.asarray(state.client_alphas)
  assert 0 <= alphas.min() < alphas.max() <= 1
  assert {0.0, 1.0} & set(alphas.tolist())


def test_alpha_follows_the_rate_of_the_round():
  # A schedule of rates is the same as rates of their own.
  data, fixed = federation(), helpers.local(rate=0.05, hidden=())
  halved = helpers.local(hidden=())._replace(lr_schedule=lambda number: 0.5)
  a, _ = run(algorithms.build('apfl', fixed), data)
  cohort = Cohort(np.arange(6, dtype=np.int32), everyone=True, round=np.int32(0))
  b, _ = run(algorithms.build('apfl', halved), data, cohort=lambda _: cohort)
  assert_close(a.client_alphas, b.client_alphas, rtol=1e-6)
  assert_close(matrix(a.client_params), matrix(b.client_params), rtol=1e-5)


# Ditto.


def test_training_alone_gives_the_models_that_clients_keep():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('ditto', local, ditto_lambda=0.7)
  state, _ = run(algorithm, data, rounds=2)  # Whose two models differ.
  everyone, key = helpers.everyone(data), jax.random.key(5)
  after, _ = jax.jit(algorithm.step)(state, data, everyone, key)
  train = jax.jit(lambda s: algorithm.train(local, s, data, everyone, key, Reduction()))
  trained = matrix(train(state).params)
  assert_close(trained, matrix(after.client_params), rtol=1e-5, atol=1e-6)


# FedBN.


class Block(nn.Module):
  """A dense layer with a norm beside its input."""

  @nn.compact
  def __call__(self, x):
    return x + nn.relu(nn.LayerNorm(name='norm')(nn.Dense(6, name='dense')(x)))


class Net(nn.Module):
  """A norm, and another one within a block."""

  @nn.compact
  def __call__(self, x):
    x = Block(name='block')(nn.LayerNorm(name='norm')(x))
    return nn.Dense(3, name='logits')(x)


LOCAL = helpers.local()._replace(model=models.from_flax(Net(), (6,)))


def test_norms_within_blocks_stay_with_clients():
  data, algorithm = federation(), algorithms.build('fed_bn', LOCAL)
  state, _ = run(algorithm, data)
  used = algorithm.deployed(state, data)
  shared, own = used.shared, used.personal
  assert own['logits'] is shared['norm'] is shared['block']['norm'] is None
  assert own['block']['dense'] is None
  assert shared['block']['dense']['kernel'].shape == (1, 6, 6)
  for norm in (own['norm'], own['block']['norm']):
    for x in norm.values():
      assert len(np.unique(np.asarray(x), axis=0)) == len(SIZES)
  by_name = personal_head.averaging(LOCAL, ['*norm*'], 'uniform')
  chex.assert_trees_all_equal(run(by_name, data)[0], state)
  # 6 scales and biases of each norm are not sent.
  assert algorithm.traffic.model == 4 * (6 * 6 + 6 + 6 * 3 + 3)


# FedRep and FedBABU.


def test_heads_train_in_epochs_even_where_bodies_train_in_steps():
  data, local = federation(), helpers.local(steps=5)
  algorithm = algorithms.build('fed_rep', local, head_epochs=3)
  _, infos = run(algorithm, data, rounds=1)
  assert int(infos[0].steps) == sum(3 * -(-size // 4) + 5 for size in SIZES)


# L2GD.


def apart(state, moves):
  """The state before a round of aggregation, with each client's parameters moved."""

  def moved(x):
    return x + np.array(moves, np.float32).reshape(-1, *[1] * (x.ndim - 1))

  own = jax.tree.map(moved, state.client_params)
  return state._replace(client_params=own, aggregates=np.bool_(True))


def test_a_client_without_examples_has_no_part_in_the_mean_however_far_it_is():
  data, local = helpers.federation([3, 0, 4]), helpers.local()
  algorithm = algorithms.build(
    'l2gd', local, l2gd_lambda=10.0, aggregation_probability=0.5
  )
  state = apart(initial(algorithm, data), [0.0, 1e20, 1.0])
  after, info = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(3)
  )
  old, new = matrix(state.client_params), matrix(after.client_params)
  assert_close(new[[0, 2]], [old[[0, 2]].mean(axis=0)] * 2, rtol=1e-5)
  np.testing.assert_array_equal(new[1], old[1])
  assert int(info.trained) == 2


def test_a_scheduled_rate_shortens_the_step_to_the_mean():
  # A whole step to the mean, times 0.25.
  data = helpers.federation([3, 2, 4])
  local = helpers.local()._replace(lr_schedule=lambda number: 0.5**number)
  algorithm = algorithms.build(
    'l2gd', local, l2gd_lambda=10.0, aggregation_probability=0.5
  )
  state = apart(initial(algorithm, data), [0.0, 1.0, 5.0])
  cohort = dataclasses.replace(helpers.everyone(data), round=np.int32(2))
  after, _ = jax.jit(algorithm.step)(state, data, cohort, jax.random.key(3))
  old = matrix(state.client_params)
  assert_close(matrix(after.client_params), 0.75 * old + 0.25 * old.mean(axis=0))


def test_a_step_may_reach_the_mean_of_the_models():
  algorithms.build('l2gd', helpers.local(), l2gd_lambda=2.5 * (1 + 5e-7))  # Rounding.


# pFedMe.


P_FED_ME = {
  'pfedme_lambda': 2.0,
  'inner_steps': 3,
  'inner_learning_rate': 0.2,
  'server_learning_rate': 0.8,
}


def test_the_local_optimizer_steps_along_the_envelope():
  # With momentum, the first of several steps is that of SGD, the second is not.
  data = federation()
  for steps in (1, 2):
    finals = [
      run(
        algorithms.build(
          'p_fed_me',
          helpers.local(batch_size=0, steps=steps, optimizer=make, hidden=()),
          **P_FED_ME,
        ),
        data,
        rounds=1,
      )[0].params
      for make in (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9))
    ]
    same = np.allclose(*map(matrix, finals), rtol=1e-6, atol=1e-7)
    assert same == (steps == 1)


# FedALA.


ALA = {'ala_rate': 20.0}


def test_what_is_sent_is_about_the_model_of_the_server():
  """Clipping holds, though clients start from heads of their own."""
  data, clip = federation(), 1e-3
  algorithm = algorithms.build('fed_ala', helpers.local(rate=0.5), **ALA)
  before, _ = run(algorithm, data, rounds=3)
  sends = differential_privacy(clip, 0.0, where='client', delta=0)
  private = algorithms.build('fed_ala', helpers.local()._replace(sends=sends), **ALA)
  key = jax.random.key(7)
  after, _ = jax.jit(private.step)(before, data, helpers.everyone(data), key)
  moved = np.linalg.norm(matrix(after.params) - matrix(before.params))
  assert 0 < moved < 1.01 * clip
