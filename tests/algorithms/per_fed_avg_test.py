"""Per-FedAvg against Fallah et al.'s Algorithm 1 in float64, and its limits."""

import numpy as np
import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  initial,
  run,
  unflatten,
)

RATE, ADAPTATION = 0.1, 0.4


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
