"""What methods with several centers share."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.centers import (
  reassigned,
  round_info,
)
from fesem_jax.algorithms.wrappers.reseeding import reseed_empty_centers
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels, Clusters
from fesem_jax.core.types import Cohort
from fesem_jax.training.cohort import train_cohort
from tests.support import helpers


def test_reseeding_leaves_no_cluster_empty():
  # Client 3 is the farthest, but alone in its cluster; client 1 is next.
  data = helpers.federation([4, 4, 4, 4])
  centers = {'w': jnp.arange(3.0)[:, None]}
  trained = {'w': jnp.array([[1.0], [2.0], [3.0], [4.0]])}
  distance = jnp.array([1.0, 3.0, 2.0, 9.0])
  moved, assignment = reseed_empty_centers(
    centers, jnp.array([0, 0, 0, 1]), trained, distance, helpers.everyone(data), data
  )
  np.testing.assert_array_equal(assignment, [0, 2, 0, 1])
  np.testing.assert_array_equal(moved['w'][:, 0], [0.0, 1.0, 2.0])
  # Two centers are empty and two clients are left: neither goes.
  both = jnp.array([0, 0, 3, 3])
  centers = {'w': jnp.arange(4.0)[:, None]}
  _, assignment = reseed_empty_centers(
    centers, both, trained, distance, helpers.everyone(data), data
  )
  np.testing.assert_array_equal(assignment, both)
  # Nor where four centers are empty and their four clients share one.
  centers, together = {'w': jnp.arange(5.0)[:, None]}, jnp.zeros(4, jnp.int32)
  _, assignment = reseed_empty_centers(
    centers, together, trained, distance, helpers.everyone(data), data
  )
  np.testing.assert_array_equal(assignment, together)


def test_reseeding_fills_no_more_centers_than_clients_were_drawn():
  data, cohort = helpers.federation([4] * 5), Cohort(np.array([4, 1]), everyone=False)
  centers, trained = {'w': jnp.arange(4.0)[:, None]}, {'w': jnp.array([[7.0], [8.0]])}
  moved, assignment = reseed_empty_centers(
    centers, jnp.zeros(5, jnp.int32), trained, jnp.array([1.0, 2.0]), cohort, data
  )
  np.testing.assert_array_equal(assignment, [0, 1, 0, 0, 2])
  np.testing.assert_array_equal(moved['w'][:, 0], [0.0, 8.0, 7.0, 3.0])


def test_a_round_counts_clients_and_not_padding():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.arange(4), num_clients=6)
  local = helpers.local()
  trained = train_cohort(
    local,
    ClientModels(tree.expand(helpers.first_model(local))),
    data,
    helpers.everyone(data),
    jax.random.key(1),
  )
  before, after = jnp.array([0, 0, 1, 1, 0, 0]), jnp.array([1, 0, 0, 1, 0, 1])
  info = round_info(trained, 3, jnp.float32(2), before, after, data)
  np.testing.assert_array_equal(info.clusters.sizes, [2, 2, 0])
  assert info.clusters.sizes.dtype == jnp.int32
  assert int(info.clusters.moved) == 2
  assert (int(info.trained), int(info.failed)) == (4, 0)
  np.testing.assert_array_equal(info.clusters.assignment, after)


def test_a_report_is_corrected_where_the_host_moves_clients():
  before, after = np.array([0, 0, 1, 1, 0]), np.array([0, 1, 1, 2, 0])
  reported = Clusters(before, np.array([2, 2, 0, 0]), 0, 5.0)  # One is padding.
  found = reassigned(reported, before, after)
  assert found.assignment is after
  assert found.sizes.tolist() == [1, 2, 1, 0]
  assert found.moved == 2
  assert found.objective == 5.0
