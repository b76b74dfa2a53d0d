"""Clustering anew from a common start, against float64 and on planted clusters."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms, em, streams
from fesem_jax.base import Cohort
from tests import helpers, reference
from tests.methods import (
  assert_close,
  federation,
  initial,
  reference_round,
  unflatten,
)

EVERY = 2
SIZES = np.array([6, 3, 9, 5, 8, 4])


def built(local, **options):
  return algorithms.build(
    'fesem', local, num_clusters=2, recluster_every=EVERY, prox_lambda=0.3, **options
  )


def scatter(points, part, weights):
  """Weighted squared distances of one part's points to its mean."""
  if not part.any():
    return 0.0
  mean = np.average(points[part], axis=0, weights=weights[part])
  return weights[part] @ np.square(points[part] - mean).sum(axis=1)


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
@pytest.mark.parametrize('wrong', [True, False])
def test_a_check_is_k_means_from_the_mean_of_the_centers(wrong, weighting):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = built(local, weighting=weighting)
  state = initial(algorithm, data)
  weights = SIZES.astype(float) if weighting == 'by_examples' else np.ones(6)
  old = reference.vectors(state.centers)
  key = jax.random.key(5)

  def trained_from_mean(assignment):
    share = np.bincount(assignment, minlength=2) / 6
    start = unflatten(share @ old, reference.from_params(state.centers, 0))
    local_key = streams.fold(key, streams.LOCAL)
    trained = reference_round(local, data, [start] * 6, range(6), local_key)
    return np.stack([reference.flat(w) for w in trained])

  def value(points, second):
    parts = (scatter(points, part, weights) for part in (second, ~second))
    return sum(parts) / weights.sum()

  every_part = [np.array(b, bool) for b in itertools.product((0, 1), repeat=6)]

  def best(assignment):
    points = trained_from_mean(assignment)
    return points, min(every_part, key=lambda second: value(points, second))

  # Right is what k-means finds from the mean that this very assignment gives.
  assignment = best(np.asarray(state.assignment))[1].astype(int)
  for _ in range(5):
    assignment = best(assignment)[1].astype(int)
  if wrong:
    assignment = np.array([0, 0, 0, 1, 1, 1])
  points, second = best(assignment)
  found, present = value(points, second), value(points, assignment.astype(bool))
  assert (found < 0.98 * present) == wrong

  state = state._replace(
    assignment=jnp.asarray(assignment, jnp.int32), rounds=jnp.int32(EVERY - 1)
  )
  step = jax.jit(algorithm.step)
  after, info = step(state, data, helpers.everyone(data), key)
  if not wrong:
    np.testing.assert_array_equal(after.assignment, assignment)
    chex.assert_trees_all_equal(after.centers, state.centers)
    assert_close(info.clusters.objective, present, rtol=1e-3)
    assert int(info.clusters.moved) == 0
    assert after.checks == (EVERY + 2 * EVERY, 2 * EVERY, False)
    return
  # New clusters are called what most of their clients were called.
  both = second.astype(int), 1 - second.astype(int)
  new = min(both, key=lambda a: weights @ (a != assignment))
  np.testing.assert_array_equal(after.assignment, new)
  went = [[weights @ ((new == k) & (assignment == b)) for b in (0, 1)] for k in (0, 1)]
  shares = np.array(went) / np.sum(went, axis=1, keepdims=True)
  assert_close(reference.vectors(after.centers), shares @ old, rtol=1e-3)
  assert_close(info.clusters.objective, found, rtol=1e-3)
  assert int(info.clusters.moved) == (new != assignment).sum()
  assert after.checks == (2 * EVERY, EVERY, True)


@pytest.fixture(scope='module')
def planted():
  """Four groups of clients, and a method that checks its clusters every third round."""
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return groups, data, local, {'num_clusters': 4, 'init_epochs': 3}


def paired(algorithm, data, groups):
  """The state in which two groups share each of two centers; two are far away."""
  state = initial(algorithm, data)
  assignment = jnp.asarray(groups // 2, jnp.int32)
  ones = jnp.ones(len(groups))
  centers = em.m_step(state.client_params, assignment, ones, state.centers)
  far = jax.tree.map(lambda c: c.at[2:].add(100.0), centers)
  return state._replace(centers=far, assignment=assignment)


def test_wrong_clusters_recover_where_fesem_alone_stays(planted):
  groups, data, local, options = planted
  found = {}
  for every in (0, 3):
    algorithm = algorithms.build('fesem', local, recluster_every=every, **options)
    state, step = paired(algorithm, data, groups), jax.jit(algorithm.step)
    for number in range(1, 9):
      key = jax.random.key(number)
      state, _ = step(state, data, helpers.everyone(data), key)
    found[every] = adjusted_rand_score(groups, state.assignment)
  assert found[0] < 0.7
  assert found[3] == 1.0
  # Corrected in round 3 and found right in round 6: the next check is in round 12.
  assert (int(state.checks.due), int(state.checks.wait)) == (12, 6)
  chex.assert_tree_all_finite(state)


def test_a_cohort_is_clustered_without_the_other_clients(planted):
  groups, data, local, options = planted
  algorithm = algorithms.build('fesem', local, recluster_every=1, **options)
  state = paired(algorithm, data, groups)
  ids = np.arange(12)
  cohort = Cohort(ids, everyone=False)
  after, _ = jax.jit(algorithm.step)(state, data, cohort, jax.random.key(2))
  np.testing.assert_array_equal(after.assignment[12:], state.assignment[12:])
  assert adjusted_rand_score(groups[:12], after.assignment[:12]) == 1.0
