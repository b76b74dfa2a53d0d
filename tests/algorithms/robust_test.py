"""Robust against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.sending import Sends
from tests.support import helpers
from tests.support.methods import federation


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
