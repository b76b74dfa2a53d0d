"""APFL against float64, and its limits."""

import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
  run_cohorts,
  unflatten,
)

RATE = 0.1


def local_training(w, v, alpha, like, batches, rate=RATE):
  """w_i, v_i and a_i after SGD on the batches, and the examples' mean loss at m_i."""
  losses = []

  def of(vector, x, y):
    loss, gradient = reference.loss_and_gradient(unflatten(vector, like), x, y)
    return loss, reference.flat(gradient)

  for x, y in batches:
    loss, of_mix = of(alpha * v + (1 - alpha) * w, x, y)
    _, of_w = of(w, x, y)
    slope = of_mix @ (v - w)
    w, v = w - rate * of_w, v - rate * alpha * of_mix
    alpha = np.clip(alpha - rate * slope, 0, 1)
    losses.append(loss)
  loss = np.average(losses, weights=[len(y) for _, y in batches])
  return w, v, alpha, loss


@pytest.mark.parametrize(
  ('cohorts', 'devices'), [([range(6)] * 3, 2), ([(0, 3), (3, 4), (1, 0)], 1)]
)
def test_matches_float64_reference(cohorts, devices):
  data, local = federation(), helpers.local(epochs=2, devices=devices)
  algorithm = algorithms.build('apfl', local, apfl_alpha=0.7)
  like = reference.from_params(initial(algorithm, data).params, 0)
  w = reference.flat(like)
  own, alphas = [w] * len(SIZES), [0.7] * len(SIZES)

  def train(i, w, batches):
    w, own[i], alphas[i], loss = local_training(w, own[i], alphas[i], like, batches())
    return w, loss

  w, loss, steps = averaged_rounds(local, data, w, cohorts, train)
  state, infos = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], w, rtol=1e-3)
  assert_close(reference.vectors(state.client_params), np.stack(own), rtol=1e-3)
  assert_close(state.client_alphas, alphas)
  assert np.std(alphas) > 1e-4
  mixes = [a * v + (1 - a) * w for a, v in zip(alphas, own, strict=True)]
  used = algorithm.deployed(state, data).own
  assert_close(reference.vectors(used), np.stack(mixes), rtol=1e-3)
  assert_close(infos[-1].train_loss, loss)
  assert int(infos[-1].steps) == 2 * steps  # Both models train.


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
