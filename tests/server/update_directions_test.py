"""Directions of updates by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import sharding
from fesem_jax.server.vector_clusters import (
  clusters_of_directions,
  nearest_direction,
)


def test_who_is_like_no_direction_is_in_none():
  directions = {'w': jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 5.0], [2.0, 0.0]])}
  vectors = {'w': jnp.array([[3.0, 4.0], [-1.0, 0.0], [7.0, 0.0], [0.0, -2.0]])}
  # Cosines of the first with the directions: 0.6, none, 0.8 and 0.6.
  assert nearest_direction(vectors, directions).tolist() == [2, 2, 0, 0]
  assert nearest_direction(vectors, directions, 0.7).tolist() == [2, 4, 0, 4]
  assert nearest_direction(vectors, directions, 0.9).tolist() == [4, 4, 0, 4]
  # A cosine that is just as large as asked for does.
  result = nearest_direction(vectors, directions, 0.0)
  assert result.tolist() == [2, 2, 0, 0]
  assert result.dtype == jnp.int32
  # By default, the least angle may be the straight one.
  opposite = {'w': -directions['w'][:1]}
  assert nearest_direction({'w': directions['w'][:1]}, opposite).tolist() == [0]


def test_updates_that_say_nothing_are_in_no_cluster_and_change_no_other():
  # Two groups by direction, of short updates whose lengths differ more.
  angles = np.radians([0, 50, 5, 55, 20, 0, 70])
  lengths = 1e-4 * np.array([1, 9, 8, 2, 1, 0, 1])
  updates = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  updates[6, 0] = np.inf
  exists = jnp.arange(7) != 4
  find = jax.jit(clusters_of_directions, static_argnums=(4, 5))
  cluster, placed = find(
    jax.random.key(0), {'w': jnp.asarray(updates, jnp.float32)}, exists,
    jnp.array([6, 2, 3, 4, 5, 0, 1]), 2, sharding.client_mesh(1),
  )  # fmt: skip
  assert placed.tolist() == [True, True, True, True, False, False, False]
  assert cluster[:4].tolist() == [1, 0, 1, 0]
