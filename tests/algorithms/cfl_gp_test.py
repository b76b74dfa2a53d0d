"""CFL-GP against float64, and the clusters that it finds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from fesem_jax.data.corruption import corrupted
from fesem_jax.server.gradient_clusters import add_to_means
from fesem_jax.server.vector_clusters import numbered_by_clients
from fesem_jax.utils.errors import UserError
from tests.support import draws, helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  over_seeds,
  reference_gradient,
  reference_round,
  run,
  unflatten,
)


def clustered(gradients, old):
  """[S] clusters of [S, K P] gradients in K dimensions, as few as possible moved."""
  left = np.linalg.svd(gradients.T, full_matrices=False)[0]
  own = reference.best_kmeans(gradients @ left[:, :2], 2)[0]
  own = own if own[0] == 0 else 1 - own  # Numbered by their first clients.
  kept = [[((own == j) & (old == k)).sum() for k in (0, 1)] for j in (0, 1)]
  return linear_sum_assignment(-np.array(kept))[1][own]


@pytest.mark.parametrize(
  ('variant', 'weighting', 'dropout'),
  [('model', 'uniform', 0.0), ('gradient', 'by_examples', 0.3)],
)
def test_matches_float64_reference(variant, weighting, dropout):
  data = federation()
  local = helpers.local(epochs=2)._replace(dropout_rate=dropout)
  options = {'variant': variant, 'weighting': weighting}
  algorithm = algorithms.build(
    'cfl_gp', local, num_clusters=2, cluster_updates=3, **options
  )
  state, step = initial(algorithm, data), jax.jit(algorithm.step)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  sizes = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  own, counts = np.zeros(6, int), np.zeros((6, 2), int)
  means = np.zeros((6, 2, reference.flat(centers[0]).size))
  without = 0  # Clients that have yet to send a gradient.
  for number in range(1, 8):  # Clusters in rounds 1, 3 and 5, by models 0, 1 and 0.
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(state, data, helpers.everyone(data), key)
    here = ~draws.dropped(key, data, dropout) if dropout else np.ones(6, bool)
    if number in (1, 3, 5):
      k = 1 if number == 3 else 0
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
    if variant == 'model':
      models = reference_round(local, data, [centers[k] for k in own], range(6), key)
      points = np.stack([reference.flat(w) for w in models])
    else:
      gradients = [reference_gradient(centers[k], data, i) for i, k in enumerate(own)]
      points = old[own] - 0.1 * np.array(gradients)
    new = reference.means(points, own, sizes * here, old)
    centers = [unflatten(c, centers[0]) for c in new]
    assert_close(reference.vectors(state.centers), new, rtol=1e-3)
    value = reference.objective(points, new, own, sizes * here)
    assert_close(info.clusters.objective, value, rtol=1e-3)
  for k in (0, 1):
    stored = jax.tree.map(lambda g: g[:, k], state.gradients)  # noqa: B023
    assert_close(reference.vectors(stored), means[:, k], rtol=1e-3)
  assert set(own) == {0, 1}
  assert bool(without) == bool(dropout)


def test_of_one_cluster_is_fed_avg():
  data, local = federation(), helpers.local()
  method = algorithms.build('cfl_gp', local, num_clusters=1)
  average, start = (
    algorithms.build('fed_avg', local, weighting='uniform'),
    initial(method, data),
  )
  begin = initial(average, data)._replace(params=start.centers)
  want, _ = run(average._replace(init=lambda key, data: begin), data)
  state, _ = run(method, data)
  assert_close(matrix(state.centers), matrix(want.params), rtol=1e-6, atol=1e-7)


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('cfl_gp', local, num_clusters=4)


@over_seeds(3)
def test_recovers_planted_clusters(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  state, infos = run(planted(), data, rounds=5, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert int(infos[-1].clusters.moved) == 0
  assert infos[-1].train_loss < infos[0].train_loss


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


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'num_clusters': 0}, '`num_clusters=0` must be at least 1'),
    ({'cluster_every': 0}, '`cluster_every=0` must be at least 1'),
    ({'cluster_updates': 0}, '`cluster_updates=0` must be at least 1'),
    ({'variant': 'both'}, '`variant=both` is unknown; choose one of'),
    ({'weighting': 'size'}, '`weighting=size` is unknown'),
  ],
)
def test_bad_options_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    algorithms.build('cfl_gp', helpers.local(), **options)


def test_rounds_of_some_clients_and_lies_about_models_are_refused():
  data = federation()
  algorithm = algorithms.build('cfl_gp', helpers.local(), num_clusters=2)
  state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  some = Cohort(np.array([0, 2], np.int32), everyone=False)
  many = algorithms.build('cfl_gp', helpers.local(), num_clusters=7)
  with pytest.raises(UserError, match='`clients_per_round` must be 0 for cfl_gp'):
    jax.eval_shape(algorithm.step, state, data, some, jax.random.key(1))
  with pytest.raises(UserError, match='`corrupt=sign_flip` is not defined for cfl_gp'):
    algorithm.init(jax.random.key(0), corrupted(data, 'sign_flip', 0.5))
  with pytest.raises(UserError, match='`num_clusters=7` is more than the 6 clients'):
    many.init(jax.random.key(0), data)
