"""Methods with a center for each cluster."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.clove import CloveState
from fesem_jax.algorithms.common import random_centers
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sending import Sends
from fesem_jax.core.types import Cohort
from fesem_jax.data import hold_out, with_true_groups
from fesem_jax.server.vector_clusters import add_to_means, numbered_by_clients
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  deployed,
  federation,
  initial,
  matrix,
  run,
)

# CLoVE.


def test_who_has_yet_to_take_part_deploys_the_model_of_least_loss():
  data, local = federation(), helpers.local(hidden=())
  algorithm = algorithms.build('clove', local, num_clusters=2)
  cohort = Cohort(np.array([0, 1, 4], np.int32), everyone=False)
  state, infos = run(algorithm, data, cohort=lambda _: cohort)
  assert state.joined.tolist() == [True, True, False, False, True, False]
  assert int(infos[-1].clusters.sizes.sum()) == 3
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  losses = reference.losses(centers, data, range(6))
  best = np.argmin(losses, axis=1)
  # Who has taken part deploys the model that it trained, even if another is better.
  state = state._replace(
    assignment=jnp.where(state.joined, 1 - best, 2).astype(jnp.int32)
  )
  used = deployed(algorithm, state, data)
  own = np.where(state.joined, 1 - best, best)
  np.testing.assert_array_equal(used, matrix(state.centers)[own])


def test_late_clients_choose_by_one_example_and_without_any_the_first_model():
  # Each model says its class.
  x, sizes = np.zeros((4, *helpers.SHAPE), np.float32), [2, 1, 0, 1]
  data = FederatedData.from_arrays(x, np.array([0, 0, 1, 2]), sizes, num_classes=3)
  algorithm = algorithms.build('clove', helpers.local(hidden=()), num_clusters=3)
  logits = {'kernel': jnp.zeros((3, *helpers.SHAPE, 3)), 'bias': jnp.eye(3)}
  own = jnp.array([1, 3, 3, 3])  # The first client has taken part.
  state = CloveState({'logits': logits}, own, jnp.int32(5))
  used = jax.jit(algorithm.deployed)(state, data)
  assert used.choice.tolist() == [1, 1, 0, 2]


# CFL-GP.


def test_only_gradients_that_arrive_and_are_finite_enter_the_means():
  means = {'w': jnp.full((5, 2, 3), 4.0)}
  counts = jnp.array([[1, 1], [1, 0], [3, 3], [1, 1], [1, 1]])
  result = jnp.array([[0.0] * 3, [8.0] * 3, [8.0] * 3, [8.0] * 3, [3e38] * 3])
  arrived = jnp.array([True, True, True, False, True])
  add = jax.jit(add_to_means)
  new, seen = add(means, counts, {'w': result}, arrived, jnp.int32(1))
  np.testing.assert_array_equal(seen, [[1, 1], [1, 1], [3, 4], [1, 1], [1, 1]])
  np.testing.assert_array_equal(new['w'][:, 0], means['w'][:, 0])
  np.testing.assert_array_equal(new['w'][:, 1, 0], [4.0, 8.0, 5.0, 4.0, 4.0])


def test_clusters_are_numbered_by_the_smallest_id_of_their_clients():
  cluster, ids = jnp.array([2, 0, 2, 3, 0]), jnp.array([7, 3, 1, 0, 9])
  exists = jnp.array([True, True, True, False, True])
  numbered = jax.jit(numbered_by_clients, static_argnums=3)
  result = numbered(cluster, exists, ids, 4)
  np.testing.assert_array_equal(np.asarray(result)[exists], [0, 1, 0, 1])


def test_a_first_client_whose_gradient_is_not_finite_takes_no_others_with_it():
  means, counts = {'w': jnp.zeros((2, 1, 2))}, jnp.zeros((2, 1), jnp.int32)
  result = {'w': jnp.array([[jnp.inf, 1.0], [8.0, 8.0]])}
  add = jax.jit(add_to_means)
  new, seen = add(means, counts, result, jnp.ones(2, bool), jnp.int32(0))
  np.testing.assert_array_equal(seen, [[0], [1]])
  np.testing.assert_array_equal(new['w'][:, 0], [[0.0, 0.0], [8.0, 8.0]])


# FedDrift.


def test_who_has_no_losses_takes_no_part_in_the_begin_of_a_time_step():
  # Models 0 to 2 say their class, model 3 none. All clients but one were in model 1.
  y = np.array([0] * 4 + [2] + [1] * 4 + [0] * 2)
  x, sizes = np.zeros((11, *helpers.SHAPE), np.float32), [4, 1, 0, 4, 2]
  data = FederatedData.from_arrays(x, y, sizes, num_classes=3)
  x[9] = np.nan  # Of client 4.
  data = dataclasses.replace(data, x=x)
  algorithm = algorithms.build(
    'fed_drift', helpers.local(hidden=()), max_clusters=5, check_every=1,
    drift_delta=0.01,
  )  # fmt: skip
  logits = {'kernel': jnp.zeros((5, *helpers.SHAPE, 3)), 'bias': 5.0 * jnp.eye(5, 3)}
  state = initial(algorithm, data)._replace(
    centers={'logits': logits},
    assignment=jnp.array([1, 1, 3, 1, 1]),
    client_losses=jnp.full(5, 10.0),
    last_used=jnp.array([0, 0, 0, 0, -1]),
    rounds=jnp.int32(1),
  )
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(0)
  )
  # One example is enough; without any, or a loss, a client stays where it was.
  assert after.assignment.tolist() == [0, 2, 3, 1, 1]
  fits = np.log(1 + 2 * np.exp(-5))
  assert_close(after.client_losses, [fits, fits, 10, fits, 10])
  assert after.last_used.tolist() == [1, 1, 1, 0, -1]


# HypoCluster.


def test_no_client_drops_out_before_the_first_round():
  data, result = helpers.federation([3, 2, 4, 2]), []
  for rate in (0.0, 0.99):
    local = helpers.local(hidden=())._replace(dropout_rate=rate)
    algorithm = algorithms.build(
      'hypo_cluster', local, num_clusters=2, init_restarts=1, init_rounds=1
    )
    result.append(matrix(initial(algorithm, data).centers))
  np.testing.assert_array_equal(*result)


# The oracle.


def with_truth(data, clusters):
  """The data with other true clusters, which the oracle is told."""
  info = ClientInfo(data.info.names, np.asarray(clusters))
  return with_true_groups(dataclasses.replace(data, info=info))


def test_groups_travel_with_their_clients():
  data = with_truth(federation(), ['b', 'a', 'c', 'a', 'b', 'b'])
  assert data.groups.count == 3
  np.testing.assert_array_equal(data.groups.ids, [1, 0, 2, 0, 1, 1])
  turned = data.reorder(np.array([2, 0, 1]), num_clients=4)
  np.testing.assert_array_equal(turned.groups.ids, [2, 1, 0, 0])
  assert turned.groups.count == 3
  for part in hold_out(data):
    np.testing.assert_array_equal(part.groups.ids, data.groups.ids)


def test_without_known_groups_there_is_no_oracle():
  unknown = helpers.federation(SIZES)
  info = ClientInfo(unknown.info.names)
  with pytest.raises(UserError, match='groups'):
    with_true_groups(dataclasses.replace(unknown, info=info))


# The choice among draws of first centers.


@pytest.mark.parametrize(
  ('losses', 'best'),
  [
    ([3.0, 1.0, 2.0], 1),
    ([1.0, 2.0, 1.0], 2),  # Of equal ones the last.
    ([jnp.nan, 2.0, jnp.inf], 1),
    ([jnp.nan, jnp.inf, jnp.nan], 2),  # None trains, but one is taken.
    ([5.0], 0),
  ],
)
@pytest.mark.parametrize('side_by_side', [False, True])
def test_the_centers_of_least_loss_are_taken(losses, best, side_by_side):
  centers = {'w': jnp.arange(1.0, 7.0).reshape(3, 2)}

  def attempt(number):
    return jnp.array(losses)[number], {'w': centers['w'][number]}

  count = len(losses)
  at_once = count if side_by_side else 1
  result = random_centers._best_of(attempt, jnp.arange(count), at_once)
  assert result['w'].tolist() == centers['w'][best].tolist()


# Robust.


def test_a_client_whose_first_model_is_sent_as_nan_spoils_no_center():
  data, key = federation(), jax.random.key(1)

  def some_nan(key, start, trained):
    fails = jax.random.uniform(key) < 0.6
    return jax.tree.map(lambda w: jnp.where(fails, jnp.nan, w), trained)

  local = helpers.local(hidden=())._replace(sends=Sends(some_nan))
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, init_epochs=1, init_tolerance=0.02
  )
  state = jax.jit(algorithm.init)(key, data)
  assert all(np.isfinite(c).all() for c in jax.tree.leaves(state.centers))


# FeSEM.


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
