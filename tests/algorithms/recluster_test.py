"""Clustering anew from a common start, against float64 and on planted clusters."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner, replaced
from fesem_jax.core import tree
from fesem_jax.core.types import Cohort
from fesem_jax.server import em, hidden_units
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  reference_round,
  unflatten,
)

EVERY = 2
SIZES = np.array([6, 3, 9, 5, 8, 4])


LOCAL = helpers.local(epochs=2)


@functools.cache
def started(**options):
  """The state at the start, and a compiled round, which tests share."""
  algorithm = algorithms.build(
    'fesem', LOCAL, num_clusters=2, recluster_every=EVERY, prox_lambda=0.3, **options
  )
  return initial(algorithm, federation()), jax.jit(algorithm.step)


def scatter(points, part, weights):
  """Weighted squared distances of one part's points to its mean."""
  if not part.any():
    return 0.0
  mean = np.average(points[part], axis=0, weights=weights[part])
  return weights[part] @ np.square(points[part] - mean).sum(axis=1)


@pytest.mark.parametrize('wrong', [True, False])
def test_a_check_is_k_means_from_the_mean_of_the_centers(wrong):
  data, (state, step) = federation(), started(weighting='by_examples')
  weights = SIZES.astype(float)
  centers = inner(state).centers
  old = reference.vectors(centers)
  key = jax.random.key(5)

  def trained_from_mean(assignment):
    share = np.bincount(assignment, minlength=2) / 6
    start = unflatten(share @ old, reference.from_params(centers, 0))
    trained = reference_round(LOCAL, data, [start] * 6, range(6), key)
    return np.stack([reference.flat(w) for w in trained])

  def value(points, second):
    parts = (scatter(points, part, weights) for part in (second, ~second))
    return sum(parts) / weights.sum()

  every_part = [np.array(b, bool) for b in itertools.product((0, 1), repeat=6)]

  def best(assignment):
    points = trained_from_mean(assignment)
    return points, min(every_part, key=lambda second: value(points, second))

  # Right is what k-means finds from the mean that this very assignment gives.
  assignment = best(np.asarray(inner(state).assignment))[1].astype(int)
  for _ in range(5):
    assignment = best(assignment)[1].astype(int)
  if wrong:
    assignment = np.array([0, 0, 0, 1, 1, 1])
  points, second = best(assignment)
  found, present = value(points, second), value(points, assignment.astype(bool))
  both = second.astype(int), 1 - second.astype(int)
  moves = min(weights @ (a != assignment) for a in both) / weights.sum()
  assert (present - found > 0.1 * moves * present + 1e-9) == wrong

  state = replaced(
    state, assignment=jnp.asarray(assignment, jnp.int32), rounds=jnp.int32(EVERY - 1)
  )
  both_states, info = step(state, data, helpers.everyone(data), key)
  after, checks = inner(both_states), both_states.checks
  if not wrong:
    np.testing.assert_array_equal(after.assignment, assignment)
    chex.assert_trees_all_equal(after.centers, centers)
    assert_close(info.clusters.objective, present, rtol=1e-3)
    assert int(info.clusters.moved) == 0
    assert checks == (EVERY + 2 * EVERY, 2 * EVERY, False)
    return
  # New clusters are called what most of their clients were called.
  new = min(both, key=lambda a: weights @ (a != assignment))
  np.testing.assert_array_equal(after.assignment, new)
  went = [[weights @ ((new == k) & (assignment == b)) for b in (0, 1)] for k in (0, 1)]
  shares = np.array(went) / np.sum(went, axis=1, keepdims=True)
  assert_close(reference.vectors(after.centers), shares @ old, rtol=1e-3)
  assert_close(info.clusters.objective, found, rtol=1e-3)
  assert int(info.clusters.moved) == (new != assignment).sum()
  assert checks == (2 * EVERY, EVERY, True)


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
  ones, first = jnp.ones(len(groups)), inner(state)
  centers = em.m_step(first.client_params, assignment, ones, first.centers)
  far = jax.tree.map(lambda c: c.at[2:].add(100.0), centers)
  return replaced(state, centers=far, assignment=assignment)


@pytest.mark.nightly
def test_wrong_clusters_recover_where_fesem_alone_stays(planted):
  groups, data, local, options = planted
  found = {}
  for every in (0, 3):
    algorithm = algorithms.build('fesem', local, recluster_every=every, **options)
    state, step = paired(algorithm, data, groups), jax.jit(algorithm.step)
    for number in range(1, 9):
      key = jax.random.key(number)
      state, _ = step(state, data, helpers.everyone(data), key)
    found[every] = adjusted_rand_score(groups, inner(state).assignment)
  assert found[0] < 0.7
  assert found[3] == 1.0
  # Corrected in round 3 and found right in round 6: the next check is in round 12.
  assert (int(state.checks.due), int(state.checks.wait)) == (12, 6)
  chex.assert_tree_all_finite(state)


def test_a_cohort_that_is_too_small_is_refused(planted):
  _, data, local, options = planted
  algorithm = algorithms.build('fesem', local, recluster_every=1, **options)
  key = jax.random.key(0)
  state = jax.eval_shape(algorithm.init, key, data)
  cohort = Cohort(np.arange(4), everyone=False)
  with pytest.raises(UserError, match='clients_per_round'):
    jax.eval_shape(algorithm.step, state, data, cohort, key)


def test_a_check_leaves_the_center_of_an_empty_cluster_where_it_is():
  state, step = started(weighting='by_examples')
  state = replaced(
    state, assignment=jnp.zeros(6, jnp.int32), rounds=jnp.int32(EVERY - 1)
  )
  alike = helpers.federation([5] * 6, groups=[0] * 6)
  one = dataclasses.replace(alike, x=alike.x * 0, y=alike.y * 0)  # All end alike.
  after, _ = step(state, one, helpers.everyone(one), jax.random.key(5))
  first, last = inner(state).centers, inner(after).centers
  assert not inner(after).assignment.any()
  chex.assert_trees_all_equal(
    *(jax.tree.map(lambda x: x[1], each) for each in (first, last))
  )


def permuted(centers, order):
  """The centers, the second one's five hidden units in another order."""
  layers = hidden_units.layers_of(LOCAL.model)
  second = hidden_units.in_order(layers, tree.unstack(centers, 1), [jnp.asarray(order)])
  return jax.tree.map(lambda x, s: x.at[1].set(s), centers, second)


ORDER = [3, 0, 4, 1, 2]
BACK = np.argsort(ORDER)


def test_clients_that_keep_their_cluster_are_averaged_in_the_order_of_its_center():
  data, (state, step) = federation(), started(cluster_on='matched')
  first = tree.unstack(inner(state).centers, 0)
  near = jax.tree.map(lambda x: jnp.stack([x, x + 1e-5]), first)
  own = jnp.ones(6, jnp.int32)
  key = jax.random.key(5)

  def after(centers, hold=True):
    checks = state.checks._replace(hold=jnp.bool_(hold), due=jnp.int32(9))
    at = replaced(state, centers=centers, assignment=own)._replace(checks=checks)
    new, info = step(at, data, helpers.everyone(data), key)
    new = inner(new)
    return new.centers, np.asarray(new.assignment), info.clusters.objective

  # Some would leave for the first center, whose units are in another order.
  assert (after(permuted(near, ORDER), hold=False)[1] == 0).any()
  want, assignment, value = after(near)
  np.testing.assert_array_equal(assignment, own)
  centers, assignment, of_permuted = after(permuted(near, ORDER))
  np.testing.assert_array_equal(assignment, own)
  chex.assert_trees_all_close(permuted(centers, BACK), want, rtol=1e-4, atol=1e-6)
  assert_close(of_permuted, value, rtol=1e-3)
