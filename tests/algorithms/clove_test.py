"""CLoVE against float64, and the clusters that it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fesem_jax import algorithms
from fesem_jax.algorithms.clove import CloveState
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  deployed,
  federation,
  initial,
  matrix,
  reference_round,
  run,
  unflatten,
)
from tests.support.nights import rest_by_night


def matched(losses, num_clusters):
  """[S] the model of each loss vector: k-means, then the matching of least loss."""
  cluster = reference.best_kmeans(losses, num_clusters)[0]
  cost = [losses[cluster == j].sum(axis=0) for j in range(num_clusters)]
  return linear_sum_assignment(np.array(cost))[1][cluster]


@pytest.mark.parametrize(
  ('first', 'weighting'),
  rest_by_night([('random', 'by_examples'), ('losses', 'uniform')]),
)
def test_matches_float64_reference(first, weighting):
  data, local = federation(), helpers.local(epochs=2)
  options = {'first_assignment': first, 'weighting': weighting}
  algorithm = algorithms.build('clove', local, num_clusters=2, **options)
  state, step = initial(algorithm, data), jax.jit(algorithm.step)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  for number in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(state, data, helpers.everyone(data), key)
    if number == 1 and first == 'random':
      own = np.asarray(state.assignment)
      assert set(own) == {0, 1}
    else:
      losses = reference.losses(centers, data, range(6))
      own = matched(np.array(losses), 2)
    np.testing.assert_array_equal(state.assignment, own)
    trained = reference_round(local, data, [centers[k] for k in own], range(6), key)
    points = np.stack([reference.flat(w) for w in trained])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, own, weights, old)
    centers = [unflatten(c, centers[0]) for c in new]
    assert_close(reference.vectors(state.centers), new, rtol=1e-3)
    value = reference.objective(points, new, own, weights)
    assert_close(info.clusters.objective, value, rtol=1e-3)


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


def test_the_number_of_clusters_may_be_chosen_between_two_and_two():
  options = {'num_clusters': 2, 'choose_num_clusters': True}
  method = algorithms.build('clove', helpers.local(), **options)
  assert method.traffic.num_models == 2


def test_clustering_ends_when_no_client_of_a_round_has_moved_for_some_rounds():
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  ends = algorithms.build('clove', local, num_clusters=4, stable_rounds=3)
  got, infos = run(ends, data, rounds=8)
  moved = [int(info.clusters.moved) for info in infos]
  last = 1 + max(i for i, count in enumerate(moved) if count)
  assert got.streaks.min() == 8 - last + 1
  assert got.ended

  # If models change places, only clients that still choose by loss follow them.
  turned = jax.tree.map(lambda x: x[::-1], got.centers)
  state, step = got._replace(centers=turned), jax.jit(ends.step)

  def moves(streaks, ended=False, assignment=got.assignment):
    start = state._replace(
      streaks=jnp.array(streaks, jnp.int32), ended=ended, assignment=assignment
    )
    after, _ = step(start, data, helpers.everyone(data), jax.random.key(1))
    changed = np.asarray(after.assignment) != np.asarray(got.assignment)
    return bool(after.ended), changed.tolist(), after.streaks.tolist()

  assert moves([3] * 16) == (True, [False] * 16, [4] * 16)
  assert moves([3] * 15 + [2]) == (False, [True] * 16, [1] * 16)
  # One that never took part chooses by loss after the end, too.
  new = got.assignment.at[0].set(4)
  assert moves([0] + [5] * 15, jnp.bool_(True), new) == (
    True, [True] + [False] * 15, [1] + [6] * 15,
  )  # fmt: skip


def test_clustering_does_not_end_in_a_round_without_clients():
  data = helpers.federation([4, 4, 0])
  ends = algorithms.build('clove', helpers.local(), num_clusters=2, stable_rounds=1)
  first, step = initial(ends, data), jax.jit(ends.step)
  for empty in ([3, 3], [2, 3]):  # Empty places; a client without examples.
    cohort = Cohort(np.array(empty, np.int32), everyone=False)
    assert not step(first, data, cohort, jax.random.key(0))[0].ended
  done = first._replace(streaks=jnp.ones(3, jnp.int32))
  cohort = Cohort(np.array([0, 3], np.int32), everyone=False)
  assert step(done, data, cohort, jax.random.key(0))[0].ended
