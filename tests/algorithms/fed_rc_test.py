"""FedRC against float64, and the groups that it finds."""

import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.fed_rc import shares_of_classes


def test_classes_of_a_center_have_shares_of_its_examples():
  # Also of less than one example, and none of a center that has none.
  sums = jnp.array(
    [[[0.25, 0.0], [3.0, 0.0], [0.0, 0.0]]] + [[[0.0, 0.5], [0, 0], [0, 0]]]
  )
  want = [[1 / 3, 2 / 3], [1, 1e-8], [1e-8, 1e-8]]
  np.testing.assert_allclose(shares_of_classes(sums), want, rtol=1e-6)
