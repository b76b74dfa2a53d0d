"""L2GD against Hanzely and Richtarik's Algorithm 1 in float64, and its limits."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import prng_streams
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
  unflatten,
)

PULL, SHARE, ETA = 3.0, 0.4, 0.1
ROUNDS = 6


def coins(rounds):
  """Whether each round aggregates: tossed with the keys of the start and of rounds."""
  keys = [jax.random.key(0)]
  keys += [jax.random.fold_in(jax.random.key(9), r) for r in range(1, rounds)]
  return [
    bool(jax.random.bernoulli(jax.random.fold_in(key, prng_streams.NEXT_ROUND), SHARE))
    for key in keys
  ]


@pytest.mark.parametrize(
  ('schedule', 'cohort', 'devices'),
  [({'batch_size': 0, 'steps': 1}, range(6), 2), ({'epochs': 2}, (0, 3, 1), 1)],
)
def test_matches_float64_reference(schedule, cohort, devices):
  data, local = federation(), helpers.local(**schedule, devices=devices)
  algorithm = algorithms.build(
    'l2gd', local, l2gd_lambda=PULL, aggregation_probability=SHARE
  )
  like = reference.from_params(initial(algorithm, data).client_params, 0)
  own, ids = np.stack([reference.flat(like)] * 6), np.array(cohort)
  sizes, aggregates = np.array(SIZES)[ids], coins(ROUNDS)
  assert 1 < sum(aggregates[1:]) < ROUNDS - 1  # The first mean changes nothing.
  want = []
  for number, together in enumerate(aggregates, 1):
    key, losses = jax.random.fold_in(jax.random.key(9), number), []
    for i in ids:
      model, start = unflatten(own[i], like), own[ids]
      if together:
        losses.append(reference.loss_and_gradient(model, *data.client(i))[0])
        continue
      batches = helpers.batches(data, local.schedule, i, key)
      model, loss = reference.local_sgd(model, batches, ETA)
      own[i] = reference.flat(model)
      losses.append(loss)
    if together:
      # With alpha = n (1 - p) eta: alpha lambda / (n p).
      theta = (1 - SHARE) * ETA * PULL / SHARE
      own[ids] = (1 - theta) * start + theta * start.mean(axis=0)
    want.append(np.average(losses, weights=sizes))
  everyone = Cohort(ids.astype(np.int32), everyone=len(ids) == 6)
  state, infos = run(algorithm, data, rounds=ROUNDS, cohort=lambda _: everyone)
  assert_close(reference.vectors(state.client_params), own, rtol=1e-3)
  assert_close([info.train_loss for info in infos], want)
  assert [int(info.steps) == 0 for info in infos] == aggregates
  assert all(int(info.trained) == len(ids) for info in infos)


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
