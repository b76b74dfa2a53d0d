"""FedDyn against Acar et al.'s Algorithm 1 in float64, and what it is for."""

import dataclasses

import chex
import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.federated_data import Attack
from fesem_jax.core.types import Cohort
from fesem_jax.data import attacks
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

ALPHA = 0.3


def reference_rounds(local, data, like, cohorts):
  """x [P], h [P] and h_i [M, P] after a round with each of `cohorts`."""
  x = reference.flat(like)
  h, own = np.zeros(x.size), np.zeros((len(SIZES), x.size))
  for number, cohort in enumerate(cohorts, 1):
    key, models = jax.random.fold_in(jax.random.key(9), number), []
    for i in cohort:
      w, _ = reference.local_sgd(
        unflatten(x, like), helpers.batches(data, local.schedule, i, key), 0.1,
        prox=ALPHA / 2, correction=unflatten(-own[i], like),
      )  # fmt: skip
      models.append(reference.flat(w))
      own[i] -= ALPHA * (models[-1] - x)
    h = h - ALPHA / len(SIZES) * np.sum(models - x, axis=0)
    x = np.mean(models, axis=0) - h / ALPHA
  return x, h, own


def test_matches_float64_reference():
  cohorts = [(0, 3), (3, 4), (1, 0), (5,), (4, 2)]
  data, local = federation(), helpers.local(epochs=2, devices=2)
  # Clients without examples are not of the M.
  data = data.reorder(np.arange(6), num_clients=8)
  algorithm = algorithms.build('fed_dyn', local, dyn_alpha=ALPHA)
  like = reference.from_params(initial(algorithm, data).params, 0)
  x, h, own = reference_rounds(local, data, like, cohorts)

  def cohort_of(number):
    ids = np.array(cohorts[number - 1], np.int32)
    ids = np.pad(ids, (0, len(ids) % 2), constant_values=6)  # Of no examples.
    return Cohort(ids, everyone=False)

  state, _ = run(algorithm, data, rounds=len(cohorts), cohort=cohort_of)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3, atol=5e-5)
  assert_close(reference.vectors(state.correction)[0], h, rtol=1e-3)
  assert_close(reference.vectors(state.client_gradients)[:6], own, rtol=1e-3)


def test_a_client_that_drops_out_keeps_its_gradient_and_nothing_moves_without_any():
  data, keep = federation(), helpers.local(hidden=())._replace(dropout_rate=0.5)
  some = algorithms.build('fed_dyn', keep)
  before, _ = run(some, data, rounds=1)
  after, info = jax.jit(some.step)(
    before, data, helpers.everyone(data), jax.random.key(17)
  )
  pairs = matrix(before.client_gradients), matrix(after.client_gradients)
  changed = (pairs[0] != pairs[1]).any(axis=1).sum()
  assert changed == int(info.trained)
  assert 0 < changed < 6
  nobody = algorithms.build('fed_dyn', keep._replace(dropout_rate=1 - 1e-7))
  still, info = jax.jit(nobody.step)(
    after, data, helpers.everyone(data), jax.random.key(3)
  )
  assert int(info.trained) == 0
  chex.assert_trees_all_equal(after, still)


def test_what_bad_clients_keep_is_as_trained():
  # They send the opposite change: the server's h hears of it, their h_i do not.
  honest = helpers.federation([6, 6])
  bad = Attack(np.ones(2, bool), (attacks.Replacement(),))
  lying = dataclasses.replace(honest, attack=bad)
  algorithm = algorithms.build('fed_dyn', helpers.local(hidden=()))
  a, b = (run(algorithm, data, rounds=1)[0] for data in (honest, lying))
  assert_close(matrix(a.client_gradients), matrix(b.client_gradients))
  assert_close(matrix(a.correction), -matrix(b.correction))
