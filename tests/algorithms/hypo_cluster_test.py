"""HypoCluster against float64."""

import numpy as np

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.methods import (
  initial,
  matrix,
)


def test_no_client_drops_out_before_the_first_round():
  data, found = helpers.federation([3, 2, 4, 2]), []
  for rate in (0.0, 0.99):
    local = helpers.local(hidden=())._replace(dropout_rate=rate)
    algorithm = algorithms.build(
      'hypo_cluster', local, num_clusters=2, init_restarts=1, init_rounds=1
    )
    found.append(matrix(initial(algorithm, data).centers))
  np.testing.assert_array_equal(*found)
