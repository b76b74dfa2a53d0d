"""Clustering anew from a common start, on planted clusters and of matched units."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner, replaced
from fesem_jax.core import tree
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
  groups, found = np.arange(16) % 4, {}
  data = helpers.federation([60] * 16, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  options = {'num_clusters': 4, 'init_epochs': 3}
  for every in (0, 3):
    algorithm = algorithms.build('fesem', local, recluster_every=every, **options)
    state, step = paired(algorithm, data, groups), jax.jit(algorithm.step)
    for number in range(1, 9):
      key = jax.random.key(number)
      state, _ = step(jax.device_get(state), data, helpers.everyone(data), key)
    found[every] = adjusted_rand_score(groups, inner(state).assignment)
  assert found[0] < 0.7
  assert found[3] == 1.0
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
