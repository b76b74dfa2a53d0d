"""FeSEM against float64, stacked and streamed, its penalty and its options."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  federation,
  initial,
  matrix,
)


def lost_start(algorithm, data):
  """FeSEM's state with all clients in cluster 0, at the mean of all models."""
  state = initial(algorithm, data)

  def mean(x):
    return x.mean(axis=0, keepdims=True)

  def far(x, c):
    return jnp.concatenate([mean(x), 100.0 + mean(x)])

  centers = jax.tree.map(far, state.client_params, state.centers)
  nobody = jnp.zeros_like(state.assignment)
  return state._replace(centers=centers, assignment=nobody)


def test_an_empty_center_moves_to_the_farthest_client_only_where_asked():
  data, local = federation(), helpers.local(hidden=())
  both = [
    algorithms.build('fesem', local, num_clusters=2, reseed_empty=on)
    for on in (False, True)
  ]
  state = lost_start(both[0], data)
  plain, seeded = (
    jax.jit(a.step)(state, data, helpers.everyone(data), jax.random.key(1))[0]
    for a in both
  )
  points = matrix(plain.client_params)
  distance = ((points - matrix(state.centers)[0]) ** 2).sum(axis=1)
  farthest = int(distance.argmax())
  assert not plain.assignment.any()
  np.testing.assert_array_equal(np.flatnonzero(seeded.assignment), [farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[1], points[farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[0], matrix(plain.centers)[0])


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
