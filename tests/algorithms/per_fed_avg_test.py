"""Per-FedAvg against Fallah et al.'s Algorithm 1 in float64, and its limits."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_gradient,
  run,
  run_cohorts,
  unflatten,
)
from tests.support.nights import rest_by_night

RATE, ADAPTATION = 0.1, 0.4


def local_training(w, like, batches, count):
  """w_i after SGD along meta-gradients, each of the next `count` batches."""

  def gradient(vector, batch):
    _, found = reference.loss_and_gradient(unflatten(vector, like), *batch)
    return reference.flat(found)

  for first in range(0, len(batches) - count + 1, count):
    inner, outer, *last = batches[first : first + count]
    g = gradient(w - ADAPTATION * gradient(w, inner), outer)
    if last:  # About the Hessian times g.
      small = 0.01 * g
      apart = gradient(w + small, last[0]) - gradient(w - small, last[0])
      g = g - ADAPTATION * apart / 0.02
    w = w - RATE * g
  return w


@pytest.mark.parametrize(
  ('variant', 'cohorts', 'devices'),
  rest_by_night(
    [
      ('first_order', [range(6)] * 3, 2),
      ('hessian_free', [(0, 3), (3, 4), (1, 0)], 1),
    ]
  ),
)
def test_matches_float64_reference(variant, cohorts, devices):
  # Gradients of ReLU jump, so that differences along them depend on their length.
  hidden = (5,) if variant == 'first_order' else ()
  local = helpers.local(2, epochs=3, devices=devices, hidden=hidden)
  data = federation()
  algorithm = algorithms.build(
    'per_fed_avg', local, meta_gradient=variant, adaptation_rate=ADAPTATION
  )
  like = reference.from_params(initial(algorithm, data).params, 0)
  x = reference.flat(like)
  count = 3 if variant == 'hessian_free' else 2

  def train(i, x, batches):
    del i
    return local_training(x, like, batches(), count), 0.0

  x, *_ = averaged_rounds(local, data, x, cohorts, train, 'uniform')

  state, _ = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)
  used = reference.vectors(jax.jit(algorithm.deployed)(state, data).own)
  adapted = [
    x - ADAPTATION * reference_gradient(unflatten(x, like), data, i)
    for i in range(len(SIZES))
  ]
  assert_close(used, np.stack(adapted), rtol=1e-3)


@pytest.mark.parametrize(
  ('variant', 'epochs', 'gradients'), [('first_order', 4, 4), ('hessian_free', 6, 8)]
)
def test_a_round_reports_the_losses_and_the_number_of_all_gradients(
  variant, epochs, gradients
):
  # Of two steps of one client, whose batches are all of its examples.
  data, delta = helpers.federation([5]), 0.01
  local = helpers.local(batch_size=0, epochs=epochs, hidden=())
  algorithm = algorithms.build(
    'per_fed_avg', local, meta_gradient=variant, adaptation_rate=ADAPTATION
  )
  state, losses = initial(algorithm, data), []
  like = reference.from_params(state.params, 0)
  w = reference.flat(like)

  def at(vector):
    loss, found = reference.loss_and_gradient(unflatten(vector, like), *data.client(0))
    return loss, reference.flat(found)

  for _ in range(2):
    first, slope = at(w)
    second, g = at(w - ADAPTATION * slope)
    losses += [first, second]
    if variant == 'hessian_free':
      (ahead, above), (behind, below) = at(w + delta * g), at(w - delta * g)
      losses.append((ahead + behind) / 2)
      g = g - ADAPTATION * (above - below) / (2 * delta)
    w = w - RATE * g
  _, info = run(algorithm, data, rounds=1)
  assert_close(info[0].train_loss, np.mean(losses))
  assert int(info[0].steps) == gradients
