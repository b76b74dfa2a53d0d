"""Robust against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fesem_jax import algorithms
from fesem_jax.algorithms.robust import RobustState
from tests.support import helpers, reference
from tests.support.methods import assert_close, federation, initial, reference_round


@pytest.mark.parametrize(
  ('aggregation', 'beta'), [('trimmed_mean', 0.25), ('median', 0.1)]
)
def test_robust_round_matches_float64_reference(aggregation, beta):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, aggregation=aggregation, beta=beta, init_epochs=2
  )
  centers = jax.vmap(local.model.init)(jax.random.split(jax.random.key(1), 2))
  state = RobustState(centers, jnp.array([0, 1, 0, 1, 0, 0]))
  key = jax.random.key(5)
  starts = [reference.from_params(state.centers, int(k)) for k in state.assignment]
  trained = reference_round(local, data, starts, range(6), key)
  points = np.stack([reference.flat(w) for w in trained])
  after, _ = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  for k in (0, 1):
    mine = points[np.asarray(state.assignment) == k]
    want = (
      np.median(mine, 0) if aggregation == 'median' else stats.trim_mean(mine, beta)
    )
    got = reference.flat(reference.from_params(after.centers, k))
    assert_close(got, want, rtol=1e-3)


def test_robust_trains_until_the_loss_settles():
  data, local = federation(), helpers.local(rate=0.3)
  # With a center for each client, centers are the clients' models.
  options = {'num_clusters': 6, 'init_epochs': 2, 'trim': 0.0}
  losses = {}
  for tolerance in (0.0, 0.05, 1e-6):
    algorithm = algorithms.build('robust', local, init_tolerance=tolerance, **options)
    state = initial(algorithm, data)
    sizes = np.diff(data.offsets)
    own = [
      reference.from_params(state.centers, int(k)) for k in np.asarray(state.assignment)
    ]
    loss = [
      reference.loss_and_gradient(own[i], *data.client(i))[0] for i in range(len(sizes))
    ]
    losses[tolerance] = np.average(loss, weights=sizes)
  # A lower tolerance trains longer, 0 only once.
  assert losses[1e-6] < losses[0.05] < losses[0.0]
