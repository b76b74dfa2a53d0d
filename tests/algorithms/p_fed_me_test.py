"""pFedMe against Dinh et al.'s Algorithm 1 in float64, and its limits."""

import numpy as np
import optax
import pytest

from fesem_jax import algorithms
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

OPTIONS = {
  'pfedme_lambda': 2.0,
  'inner_steps': 3,
  'inner_learning_rate': 0.2,
  'server_learning_rate': 0.8,
}


def local_training(x, like, batches):
  """w_i and theta_i after a client's batches, and the mean loss that theta_i met."""
  w, theta, losses = x, x, []
  for batch in batches:
    for inner in range(3):
      loss, gradient = reference.loss_and_gradient(unflatten(theta, like), *batch)
      losses += [loss] if inner == 0 else []
      theta = theta - 0.2 * (reference.flat(gradient) + 2.0 * (theta - w))
    w = w - 0.1 * 2.0 * (w - theta)
  return w, theta, np.average(losses, weights=[len(y) for _, y in batches])


@pytest.mark.parametrize(
  ('weighting', 'cohorts', 'devices'),
  [('uniform', [range(6)] * 3, 2), ('by_examples', [(0, 3), (3, 4), (1, 0)], 1)],
)
def test_matches_float64_reference(weighting, cohorts, devices):
  data, local = federation(), helpers.local(epochs=2, devices=devices)
  algorithm = algorithms.build('p_fed_me', local, weighting=weighting, **OPTIONS)
  like = reference.from_params(initial(algorithm, data).params, 0)
  x = reference.flat(like)
  own = [x] * len(SIZES)

  def train(i, x, batches):
    w, own[i], loss = local_training(x, like, batches())
    return w, loss

  x, loss, steps = averaged_rounds(
    local, data, x, cohorts, train, weighting, lambda x, mean: 0.2 * x + 0.8 * mean
  )

  state, infos = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)
  used = algorithm.deployed(state, data).own
  assert_close(reference.vectors(used), np.stack(own), rtol=1e-3)
  assert_close(infos[-1].train_loss, loss)
  assert int(infos[-1].steps) == 3 * steps


def test_the_local_optimizer_steps_along_the_envelope():
  # With momentum, the first of several steps is that of SGD, the second is not.
  data = federation()
  for steps in (1, 2):
    finals = [
      run(
        algorithms.build(
          'p_fed_me',
          helpers.local(batch_size=0, steps=steps, optimizer=make, hidden=()),
          **OPTIONS,
        ),
        data,
        rounds=1,
      )[0].params
      for make in (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9))
    ]
    same = np.allclose(*map(matrix, finals), rtol=1e-6, atol=1e-7)
    assert same == (steps == 1)
