"""CFL-GP against float64, and the clusters that it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fesem_jax import algorithms
from fesem_jax.server.vector_clusters import add_to_means, numbered_by_clients
from tests.support import draws, helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  reference_gradient,
  reference_round,
  unflatten,
)
from tests.support.nights import rest_by_night


def clustered(gradients, old):
  """[S] clusters of [S, K P] gradients in K dimensions, as few as possible moved."""
  left = np.linalg.svd(gradients.T, full_matrices=False)[0]
  own = reference.best_kmeans(gradients @ left[:, :2], 2)[0]
  own = own if own[0] == 0 else 1 - own  # Numbered by their first clients.
  kept = [[((own == j) & (old == k)).sum() for k in (0, 1)] for j in (0, 1)]
  return linear_sum_assignment(-np.array(kept))[1][own]


@pytest.mark.parametrize('dropout', rest_by_night([0.0, 0.3]))
def test_matches_float64_reference(dropout):
  data = federation()
  local = helpers.local(epochs=2)._replace(dropout_rate=dropout)
  algorithm = algorithms.build('cfl_gp', local, num_clusters=2)
  state, step = initial(algorithm, data), jax.jit(algorithm.step)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  own, counts = np.zeros(6, int), np.zeros((6, 2), int)
  means = np.zeros((6, 2, reference.flat(centers[0]).size))
  without = 0  # Clients that have yet to send a gradient.
  for number in range(1, 13):  # Clusters in rounds 1, 3, ..., 9, by models 0, 1, 0, ...
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(state, data, helpers.everyone(data), key)
    here = ~draws.dropped(key, data, dropout) if dropout else np.ones(6, bool)
    if number in (1, 3, 5, 7, 9):
      k = number // 2 % 2
      for i in np.flatnonzero(here):
        counts[i, k] += 1
        found = reference_gradient(centers[k], data, i)
        means[i, k] += (found - means[i, k]) / counts[i, k]
      some = counts.any(axis=1)
      own[some] = clustered(means[some].reshape(some.sum(), -1), own[some])
      without += (~some).sum()
    np.testing.assert_array_equal(state.assignment, own)
    np.testing.assert_array_equal(info.clusters.sizes, np.bincount(own, minlength=2))
    old = np.stack([reference.flat(c) for c in centers])
    models = reference_round(local, data, [centers[k] for k in own], range(6), key)
    points = np.stack([reference.flat(w) for w in models])
    new = reference.means(points, own, here.astype(float), old)
    centers = [unflatten(c, centers[0]) for c in new]
    assert_close(reference.vectors(state.centers), new, rtol=1e-3)
    value = reference.objective(points, new, own, here.astype(float))
    assert_close(info.clusters.objective, value, rtol=1e-3)
  for k in (0, 1):
    stored = jax.tree.map(lambda g: g[:, k], state.gradients)  # noqa: B023
    assert_close(reference.vectors(stored), means[:, k], rtol=1e-3)
  assert set(own) == {0, 1}
  assert bool(without) == bool(dropout)


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
