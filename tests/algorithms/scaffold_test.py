"""SCAFFOLD against Karimireddy et al.'s Algorithm 1, option II."""

import chex
import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import (
  federation,
  run,
)


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
