"""Coordinates of vectors from their inner products, and clusters that keep numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import sharding
from fesem_jax.server.vector_clusters import (
  clusters_of_gradients,
  leading_coordinates,
)


def test_coordinates_are_along_the_directions_of_most_length():
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(7, 5)) * [4, 3, 2, 1, 0.5]
  right, values, _ = np.linalg.svd(vectors)
  result = np.asarray(leading_coordinates(jnp.asarray(vectors @ vectors.T), 2))
  assert result.shape == (7, 2)
  # Up to signs, in increasing order of the singular values.
  want = (right[:, :2] * values[:2])[:, ::-1]
  np.testing.assert_allclose(np.abs(result), np.abs(want), rtol=1e-3, atol=1e-4)
  # More than there are dimensions: what is beyond is 0 but for rounding.
  line = np.outer([1.0, 2.0, -1.0], [3.0, 4.0])
  result = leading_coordinates(jnp.asarray(line @ line.T, jnp.float32), 3)
  np.testing.assert_allclose(np.abs(result[:, 2]), [5, 10, 5], rtol=1e-5)
  np.testing.assert_allclose(result[:, :2], 0, atol=0.02)


def test_who_has_no_gradient_stays_and_others_keep_the_numbers_of_most():
  # Two groups; of the first, most were in cluster 1. Means of both models count.
  means = {'w': jnp.array([[[1.0], [9.0]]] * 3 + [[[1.0], [-9.0]]] * 2 + [[[0.0]] * 2])}
  counts = jnp.array([[1, 0], [0, 2], [1, 1], [3, 0], [1, 1], [0, 0]])
  old = jnp.array([1, 1, 0, 0, 1, 1], jnp.int32)
  ids, mesh = jnp.array([3, 5, 1, 0, 2, 4]), sharding.client_mesh(1)
  find = jax.jit(clusters_of_gradients, static_argnums=5)
  result = find(jax.random.key(0), means, counts, old, ids, mesh)
  assert result.tolist() == [1, 1, 1, 0, 0, 1]
  assert result.dtype == jnp.int32
  other = find(jax.random.key(0), means, counts, 1 - old, ids, mesh)
  assert other.tolist() == [0, 0, 0, 1, 1, 0]
