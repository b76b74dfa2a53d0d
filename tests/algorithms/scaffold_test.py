"""SCAFFOLD against Karimireddy et al.'s Algorithm 1, option II."""

import chex
import jax
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  run,
  run_cohorts,
  unflatten,
)

ETA = 0.1
COHORTS = [(0, 3), (3, 4), (1, 0), (4, 2)]


def reference_rounds(local, data, model, cohorts, server_rate):
  """x [P], c [P] and c_i [M, P] after a round with each of `cohorts`."""
  x = reference.flat(model)
  c, own = np.zeros(x.size), np.zeros((len(SIZES), x.size))
  for number, cohort in enumerate(cohorts, 1):
    key = jax.random.fold_in(jax.random.key(9), number)
    models, changes = [], []
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      correction = unflatten(c - own[i], model)
      w, _ = reference.local_sgd(
        unflatten(x, model), batches, ETA, correction=correction
      )
      models.append(reference.flat(w))
      changes.append(-c + (x - models[-1]) / (len(batches) * ETA))
    for i, change in zip(cohort, changes, strict=True):
      own[i] += change
    x = x + server_rate * (np.mean(models, axis=0) - x)
    c = c + len(cohort) / len(SIZES) * np.mean(changes, axis=0)
  return x, c, own


def test_matches_float64_reference():
  data, local = federation(), helpers.local(epochs=2, devices=2)
  # Clients without examples are not of the M.
  data = data.reorder(np.arange(6), num_clients=8)
  algorithm = algorithms.build('scaffold', local, server_learning_rate=0.5)
  model = reference.from_params(initial(algorithm, data).params, 0)
  x, c, own = reference_rounds(local, data, model, COHORTS, 0.5)

  state, infos = run_cohorts(algorithm, data, COHORTS)

  def flat(stack, i):
    return reference.flat(reference.from_params(stack, i))

  assert_close(flat(state.params, 0), x, rtol=1e-3)
  assert_close(flat(state.control, 0), c, rtol=1e-3)
  for i in range(len(SIZES)):
    assert_close(flat(state.client_controls, i), own[i], rtol=1e-3, atol=2e-5)
  # Round 2 is corrected: the control variates are of the size of gradients.
  assert np.abs(own).max() > 0.05
  assert int(infos[-1].trained) == len(COHORTS[-1])


def test_a_client_that_is_not_drawn_or_drops_out_keeps_its_control_variate():
  data = federation()
  local = helpers.local()._replace(dropout_rate=0.5)
  algorithm = algorithms.build('scaffold', local)
  state = initial(algorithm, data)
  before, _ = run(algorithm, data, rounds=2)
  key, ids = jax.random.key(17), np.array([0, 2, 4, 5], np.int32)
  after, info = jax.jit(algorithm.step)(before, data, Cohort(ids, False), key)
  assert 0 < int(info.trained) < 4

  def flat(s, i):
    return reference.flat(reference.from_params(s.client_controls, i))

  changed = [i for i in range(6) if (flat(before, i) != flat(after, i)).any()]
  assert len(changed) == int(info.trained)
  assert set(changed) < set(ids.tolist())
  # c is the mean of all c_i as long as it starts as that.
  means = jax.tree.map(lambda x: x.mean(axis=0), after.client_controls)
  own = jax.tree.map(lambda x: x[0], after.control)
  chex.assert_trees_all_close(own, means, rtol=1e-4, atol=1e-6)
  assert not np.any(flat(state, 0))


def test_the_first_round_is_that_of_fed_avg():
  data, local = federation(), helpers.local()
  a = run(algorithms.build('scaffold', local), data, rounds=1)[0]
  b = run(algorithms.build('fed_avg', local, weighting='uniform'), data, rounds=1)[0]
  chex.assert_trees_all_close(a.params, b.params, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  'optimizer', [optax.sgd(0.1, momentum=0.9), optax.adam(0.1), optax.sgd(0.0)]
)
def test_it_needs_plain_sgd(optimizer):
  local = helpers.local(optimizer=optimizer)
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('scaffold', local)


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
