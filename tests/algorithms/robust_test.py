"""Robust against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fesem_jax import algorithms
from fesem_jax.algorithms.robust import RobustState
from fesem_jax.core.sending import Sends
from tests.support import helpers, reference
from tests.support.methods import assert_close, federation, reference_round


@pytest.mark.parametrize(
  ('aggregation', 'mean'),
  [
    ('trimmed_mean(0.25)', lambda mine: stats.trim_mean(mine, 0.25)),
    ('median', lambda mine: np.median(mine, 0)),
  ],
)
def test_robust_round_matches_float64_reference(aggregation, mean):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, aggregation=aggregation, init_epochs=2
  )
  centers = helpers.first_models(local, 2, 1)
  state = RobustState(centers, jnp.array([0, 1, 0, 1, 0, 0]))
  key = jax.random.key(5)
  starts = [reference.from_params(state.centers, int(k)) for k in state.assignment]
  trained = reference_round(local, data, starts, range(6), key)
  points = np.stack([reference.flat(w) for w in trained])
  after, _ = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  for k in (0, 1):
    mine = points[np.asarray(state.assignment) == k]
    got = reference.flat(reference.from_params(after.centers, k))
    assert_close(got, mean(mine), rtol=1e-3)


@pytest.mark.parametrize('tolerance', [0.0, 0.02])
def test_a_client_whose_first_model_is_sent_as_nan_spoils_no_center(tolerance):
  data, key = federation(), jax.random.key(1)

  def some_nan(key, start, trained):
    fails = jax.random.uniform(key) < 0.6
    return jax.tree.map(lambda w: jnp.where(fails, jnp.nan, w), trained)

  local = helpers.local(hidden=())._replace(sends=Sends(some_nan))
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, init_epochs=1, init_tolerance=tolerance
  )
  state = jax.jit(algorithm.init)(key, data)
  assert all(np.isfinite(c).all() for c in jax.tree.leaves(state.centers))
