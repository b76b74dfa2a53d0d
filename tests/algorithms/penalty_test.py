"""The factor of each client's distance penalty (Eq. 7)."""

import numpy as np

from fesem_jax.algorithms.common.em_steps import Penalty
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import assert_close


def test_a_client_with_few_examples_is_pulled_more_as_in_the_paper():
  # lambda / (m alpha_i) = lambda 4 / n_i; two clients without examples are padding.
  data = helpers.federation([1, 3, 8]).reorder(np.arange(3), num_clients=5)
  cohort = Cohort(np.array([2, 0, 1, 4]), everyone=False)
  factors = Penalty(0.5, 'paper').of(data, cohort)
  assert_close(factors[:3], [2 / 8, 2, 2 / 3], rtol=1e-6)
  assert np.isfinite(factors).all()
  assert_close(Penalty(0.5).of(data, cohort), 0.5, rtol=1e-6)
  assert_close(Penalty().of(data, cohort), 0.01, rtol=1e-6)
  assert Penalty(0.0, 'paper').of(data, cohort) is None
