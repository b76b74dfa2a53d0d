"""APFL against float64, and its limits."""

import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  federation,
  matrix,
  run,
)


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
