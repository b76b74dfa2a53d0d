"""FedAMP against Huang et al.'s Algorithm 1 in float64, and its limits."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  run_cohorts,
  unflatten,
)


def messages(models, alpha, sigma):
  """[S, P] u_i of models [S, P], by the sums of the paper."""
  received = []
  for i, own in enumerate(models):
    u, rest = np.zeros_like(own), 1.0
    for j, other in enumerate(models):
      if i != j:
        xi = alpha * np.exp(-((own - other) ** 2).sum() / sigma) / sigma
        u, rest = u + xi * other, rest - xi
    received.append(u + rest * own)
  return np.stack(received)


@pytest.mark.parametrize(
  ('cohorts', 'devices'),
  [([range(6)] * 3, 2), ([(0, 3, 2), (3, 4, 1), (1, 0, 3)], 1)],
)
def test_matches_float64_reference(cohorts, devices):
  data, local = federation(), helpers.local(epochs=2, devices=devices)
  pull, sigma = 0.3, 0.5
  algorithm = algorithms.build('fed_amp', local, amp_lambda=pull, amp_sigma=sigma)
  like = reference.from_params(initial(algorithm, data).client_params, 0)
  own, apart = np.stack([reference.flat(like)] * 6), 0.0
  for number, cohort in enumerate(cohorts, 1):
    key, losses = jax.random.fold_in(jax.random.key(9), number), []
    step = sigma / max(len(cohort) - 1, 1)
    ids = list(cohort)
    received = messages(own[ids], step, sigma)
    apart = max(apart, np.abs(received - own[ids]).max())
    for i, u in zip(ids, received, strict=True):
      met, counts = [], []
      for x, y in helpers.batches(data, local.schedule, i, key):
        loss, gradient = reference.loss_and_gradient(unflatten(own[i], like), x, y)
        slope = reference.flat(gradient) + pull / step * (own[i] - u)
        own[i] = own[i] - 0.1 * slope
        met.append(loss)
        counts.append(len(y))
      losses.append(np.average(met, weights=counts))

  state, infos = run_cohorts(algorithm, data, cohorts)
  assert apart > 0.005  # Something has been received.
  assert_close(reference.vectors(state.client_params), own, rtol=1e-3)
  sizes = np.array(SIZES)[list(cohorts[-1])]
  assert_close(infos[-1].train_loss, np.average(losses, weights=sizes))
