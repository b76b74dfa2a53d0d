"""CFL-GP against float64, and the clusters that it finds."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.server.vector_clusters import add_to_means, numbered_by_clients


def test_only_gradients_that_arrive_and_are_finite_enter_the_means():
  means = {'w': jnp.full((5, 2, 3), 4.0)}
  counts = jnp.array([[1, 1], [1, 0], [3, 3], [1, 1], [1, 1]])
  found = jnp.array([[0.0] * 3, [8.0] * 3, [8.0] * 3, [8.0] * 3, [3e38] * 3])
  arrived = jnp.array([True, True, True, False, True])
  add = jax.jit(add_to_means)
  new, seen = add(means, counts, {'w': found}, arrived, jnp.int32(1))
  np.testing.assert_array_equal(seen, [[1, 1], [1, 1], [3, 4], [1, 1], [1, 1]])
  np.testing.assert_array_equal(new['w'][:, 0], means['w'][:, 0])
  np.testing.assert_array_equal(new['w'][:, 1, 0], [4.0, 8.0, 5.0, 4.0, 4.0])


def test_clusters_are_numbered_by_the_smallest_id_of_their_clients():
  cluster, ids = jnp.array([2, 0, 2, 3, 0]), jnp.array([7, 3, 1, 0, 9])
  exists = jnp.array([True, True, True, False, True])
  numbered = jax.jit(numbered_by_clients, static_argnums=3)
  found = numbered(cluster, exists, ids, 4)
  np.testing.assert_array_equal(np.asarray(found)[exists], [0, 1, 0, 1])


def test_a_first_client_whose_gradient_is_not_finite_takes_no_others_with_it():
  means, counts = {'w': jnp.zeros((2, 1, 2))}, jnp.zeros((2, 1), jnp.int32)
  found = {'w': jnp.array([[jnp.inf, 1.0], [8.0, 8.0]])}
  add = jax.jit(add_to_means)
  new, seen = add(means, counts, found, jnp.ones(2, bool), jnp.int32(0))
  np.testing.assert_array_equal(seen, [[0], [1]])
  np.testing.assert_array_equal(new['w'][:, 0], [[0.0, 0.0], [8.0, 8.0]])
