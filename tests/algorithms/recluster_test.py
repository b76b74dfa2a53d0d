"""Clustering anew: on planted clusters, of matched units, and when it changes them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.first_clusters import Clustering, FirstClusters
from fesem_jax.algorithms.common.wrapped import inner, replaced
from fesem_jax.algorithms.wrappers import reclustering
from fesem_jax.core import tree
from fesem_jax.core.types import Cohort
from fesem_jax.server import em, hidden_units
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  federation,
  initial,
)

LOCAL = helpers.local(epochs=2)


def paired(algorithm, data, groups):
  """The state in which two groups share each of two centers; two are far away."""
  state = initial(algorithm, data)
  assignment = jnp.asarray(groups // 2, jnp.int32)
  ones, first = jnp.ones(len(groups)), inner(state)
  centers = em.m_step(first.client_params, assignment, ones, first.centers)
  far = jax.tree.map(lambda c: c.at[2:].add(100.0), centers)
  return replaced(state, centers=far, assignment=assignment)


@pytest.mark.nightly
def test_wrong_clusters_recover_where_fesem_alone_stays():
  groups, result = np.arange(16) % 4, {}
  data = helpers.federation([60] * 16, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  options = {'num_clusters': 4, 'init_epochs': 3}
  for every in (0, 3):
    algorithm = algorithms.build('fesem', local, recluster_every=every, **options)
    state, step = paired(algorithm, data, groups), jax.jit(algorithm.step)
    for number in range(1, 9):
      key = jax.random.key(number)
      state, _ = step(jax.device_get(state), data, helpers.everyone(data), key)
    result[every] = adjusted_rand_score(groups, inner(state).assignment)
  assert result[0] < 0.7
  assert result[3] == 1.0
  # Corrected in round 3 and found right in round 6: the next check is in round 12.
  assert (int(state.checks.due), int(state.checks.wait)) == (12, 6)
  chex.assert_tree_all_finite(state)


def permuted(centers, order):
  """The centers, the second one's five hidden units in another order."""
  layers = hidden_units.layers_of(LOCAL.model)
  second = hidden_units.in_order(layers, tree.unstack(centers, 1), [jnp.asarray(order)])
  return jax.tree.map(lambda x, s: x.at[1].set(s), centers, second)


ORDER = [3, 0, 4, 1, 2]
BACK = np.argsort(ORDER)


def test_clients_that_keep_their_cluster_are_averaged_in_the_order_of_its_center():
  data, algorithm = (
    federation(),
    algorithms.build(
      'fesem', LOCAL, num_clusters=2, recluster_every=2, cluster_on='matched'
    ),
  )
  state, step = initial(algorithm, data), jax.jit(algorithm.step)
  first = tree.unstack(inner(state).centers, 0)
  near = jax.tree.map(lambda x: jnp.stack([x, x + 1e-5]), first)
  own = jnp.ones(6, jnp.int32)
  key = jax.random.key(5)

  def after(centers, hold=True):
    checks = state.checks._replace(hold=jnp.bool_(hold), due=jnp.int32(9))
    at = replaced(state, centers=centers, assignment=own)._replace(checks=checks)
    new, info = step(jax.device_get(at), data, helpers.everyone(data), key)
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


# Whether new clusters are taken, and what becomes of centers, by hand.


@pytest.fixture
def check(monkeypatch):
  """A check whose clients' models, and new clusters, are given."""

  def run(points, own, new, sizes=None):
    ids = np.arange(len(points))
    sizes = np.array([2] * len(points) if sizes is None else sizes)
    real = np.flatnonzero(sizes).max() + 1
    data = helpers.federation(sizes[:real]).reorder(np.arange(real), len(sizes))
    params = {'w': jnp.array(points, jnp.float32)[:, None]}

    def clustered(local, start, *args, **options):
      trained = helpers.trained(params, sizes[ids], ids=ids)
      seeds = {'w': jnp.zeros((2, 1))}
      return FirstClusters(jnp.array(new), seeds, seeds, trained, params, params)

    monkeypatch.setattr(reclustering, 'train_and_cluster', clustered)
    centers = {'w': jnp.array([[1.0], [4.0]])}
    assignment = np.zeros(len(sizes), np.int32)
    assignment[ids] = own
    cohort = Cohort(ids, everyone=len(ids) == len(sizes))
    return reclustering.recluster(
      helpers.local(), centers, jnp.array(assignment), jnp.array(own), data, cohort,
      jax.random.key(0), Clustering(),
    )  # fmt: skip

  return run


@pytest.mark.parametrize(('more', 'changed'), [(0.05, True), (0.02, False)])
def test_each_client_that_moves_must_lower_eq_6_by_a_tenth_of_its_part(
  more, changed, check
):
  # Two of three points are a cluster: at 0 and 2, Eq. 6 is 2/3; at 2 and 4 + x, it is
  # 2 (1 + x/2)^2 / 3. One of three clients moves.
  result = check([0.0, 2.0, 4.0 + more], [0, 1, 1], [0, 0, 1])
  assert bool(result.changed) == changed
  assert result.assignment.tolist() == ([0, 0, 1] if changed else [0, 1, 1])
  want = 2 / 3 if changed else 2 * (1 + more / 2) ** 2 / 3
  np.testing.assert_allclose(result.objective, want, rtol=1e-5)


def left(share):
  """Five points; if the last two leave, this share of Eq. 6 is left.

  It is 2 a^2 of 2 a^2 + 1.2 10^2.
  """
  a = np.sqrt(60 * share / (1 - share))
  return [-a, a, 0.0, 10.0, 10.0]


ONE, TWO = [0] * 5, [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
  ('share', 'own', 'sizes', 'changed'),
  [
    # 5 - 2 of 5 - 1 degrees of freedom, and a half of that: 0.375.
    (0.3, ONE, [2] * 6, True),
    (0.45, ONE, [2] * 6, False),
    # Where all clients take part, or as many clusters are used, there is no such rule.
    (0.45, ONE, [2] * 5, True),
    (0.45, ONE, [2] * 5 + [0], True),
    (0.45, [0, 0, 1, 1, 1], [2] * 6, True),
    (0.45, [0, 1, 1, 0, 0], [2] * 6, True),
  ],
)
def test_a_part_of_the_clients_uses_more_clusters_only_where_variance_halves(
  share, own, sizes, changed, check
):
  result = check(left(share), own, TWO, sizes)
  assert bool(result.changed) == changed
