"""FeSEM against float64, stacked and streamed, its penalty and its options."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  initial,
  matrix,
)


def test_fesem_compares_only_the_named_layer():
  data, local = helpers.federation(SIZES), helpers.local(rate=1e-6)
  algorithm = algorithms.build('fesem', local, num_clusters=2, cluster_on='logits')
  state = initial(algorithm, data)
  # Center 1 is nearer in all parameters, center 0 in the last layer.
  centers = jax.tree.map(lambda c: jnp.stack([c[0], c[0]]), state.centers)
  centers['dense0']['kernel'] = centers['dense0']['kernel'].at[0].add(10.0)
  centers['logits']['kernel'] = centers['logits']['kernel'].at[1].add(1.0)
  clients = jnp.ones(6, jnp.int32).at[0].set(0)
  state = state._replace(centers=centers, assignment=clients)
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  np.testing.assert_array_equal(after.assignment, clients)
  whole = algorithms.build('fesem', local, num_clusters=2)
  state = state._replace(assignment=jnp.ones(6, jnp.int32))
  after, _ = jax.jit(whole.step)(state, data, helpers.everyone(data), jax.random.key(1))
  np.testing.assert_array_equal(after.assignment, 1)


def test_more_clients_than_the_first_clustering_sees_go_to_its_centers():
  data = helpers.federation([40] * 40, groups=np.arange(40) % 2)
  local = helpers.local(chunk=8, batch_size=10, rate=0.5, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_clients=10, init_epochs=20
  )
  state = initial(algorithm, data)
  assert adjusted_rand_score(np.arange(40) % 2, state.assignment) == 1.0
  nearest = reference.nearest(matrix(state.client_params), matrix(state.centers))
  np.testing.assert_array_equal(nearest, state.assignment)
