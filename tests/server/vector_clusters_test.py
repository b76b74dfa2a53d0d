"""Clusters of vectors, and their seeds."""

import jax
import jax.numpy as jnp

from fesem_jax.server.vector_clusters import clusters_of_vectors


def test_few_clients_far_away_are_found_beside_many():
  # Seeds at random would nearly all lie in the large cluster.
  vectors = jnp.concatenate([jnp.zeros((40, 1)), jnp.array([[100.0], [230], [390]])])
  exists, ids = jnp.ones(43, bool), jnp.arange(43)
  find = jax.jit(clusters_of_vectors, static_argnums=4)
  result = find(jax.random.key(0), vectors, exists, ids, 4).tolist()
  assert result[:40] == 40 * result[:1]
  assert sorted([result[0], *result[40:]]) == [0, 1, 2, 3]
