"""FedCluster: when and how it splits, and its rounds against float64."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.bipartition import bipartition, split_clusters
from tests.support import helpers, reference
from tests.support.methods import assert_close, initial, reference_round, run, unflatten

HALF = np.sqrt(0.5)
OPTIONS = {
  'max_clusters': 4, 'eps1': 1.0, 'eps2': 0.5, 'gamma': 0.5,
  'min_size': 2, 'linkage': 'complete',
}  # fmt: skip
SPLIT = {
  'max_clusters': 8, 'eps1': 0.9, 'eps2': 0.1, 'gamma': 0.3,
  'min_size': 2, 'linkage': 'complete',
}  # fmt: skip


def inner_products(groups, noise=0.1, seed=0):
  """Inner products of updates that point one way in each group."""
  rng = np.random.default_rng(seed)
  groups = np.asarray(groups)
  ways = rng.normal(size=(groups.max() + 1, 50))
  u = ways[groups] + noise * rng.normal(size=(len(groups), 50))
  return u @ u.T


def parts(**options):
  """Clusters after a check of four updates of length 1, two along each of two axes.

  The mean update is sqrt(1/2) long, and the parts are sqrt(1/2) apart.
  """
  products = np.kron(np.eye(2), np.ones((2, 2)))
  start = np.zeros(4, np.int32)
  split = split_clusters(products, np.ones(4), start, 1, **OPTIONS | options)
  return int(split[1])


@pytest.mark.parametrize(('option', 'bound', 'splits_below'), [
    ('eps1', HALF, False),  # |mean u| < eps1 max |u|
    ('eps2', 1.0, True),  # max |u| > eps2
    ('gamma', HALF, True),  # sqrt((1 - max s) / 2) > gamma
])  # fmt: skip
def test_criteria_are_strict(option, bound, splits_below):
  below, above = np.nextafter(bound, 0), np.nextafter(bound, 2)
  found = [parts(**{option: value}) for value in (below, bound, above)]
  assert found == ([2, 1, 1] if splits_below else [1, 1, 2])


def test_only_clusters_of_more_than_the_least_size_are_split():
  assert [parts(min_size=n) for n in (3, 4, 5)] == [2, 1, 1]
  assert [parts(max_clusters=n) for n in (1, 2)] == [1, 2]


def test_the_first_split_comes_after_the_least_number_of_rounds():
  # Checks are due in rounds 2 and 4; round 2 is not more than two rounds.
  data = helpers.federation([6] * 4, groups=[0, 1] * 2)
  counts = {}
  for least in (1, 2):
    algorithm = algorithms.build(
      'fed_cluster', helpers.local(batch_size=0, chunk=4), max_clusters=2, eps1=1.1,
      eps2=0.0, gamma=0.0, min_size=2, min_rounds=least, check_every=2,
    )  # fmt: skip
    _, infos = run(algorithm, data, rounds=4)
    counts[least] = [int((i.clusters.sizes > 0).sum()) for i in infos]
  assert counts == {1: [1, 2, 2, 2], 2: [1, 1, 1, 2]}
  assert jax.tree.leaves(infos[-1].clusters.sizes)[0].sum() == 4


def split_of(updates, **options):
  updates = np.array(updates, float)
  count = len(updates)
  found, _ = split_clusters(
    updates @ updates.T,
    np.ones(count),
    np.zeros(count, np.int32),
    1,
    **OPTIONS | options,
  )
  return found.tolist()


def test_a_cluster_of_two_can_be_split():
  assert split_of([[1, 0], [-1, 0]], min_size=1, eps1=0.5) == [0, 1]
  assert split_of([[1, 0], [-1, 0]], min_size=0, eps1=0.5) == [0, 1]
  assert split_of([[1, 0]], min_size=0, eps1=1.1) == [0]


def test_one_client_with_a_large_update_is_enough():
  # Updates of length 2 and 1; the mean is 1/2.
  options = {'min_size': 1, 'eps1': 0.5}
  found = [split_of([[2, 0], [-1, 0]], eps2=e, **options) for e in (0.9, 1.5, 2.0)]
  assert found == [[0, 1], [0, 1], [0, 0]]


def test_a_cluster_with_one_update_beyond_float32_is_left_alone():
  products = np.array(
    [[4.0, -2.0, np.nan], [-2.0, 1.0, np.nan], [np.nan] * 2 + [np.inf]]
  )
  found, count = split_clusters(
    products, np.ones(3), np.zeros(3, np.int32), 1, **OPTIONS
  )
  assert (found.tolist(), int(count)) == ([0, 0, 0], 1)


def test_the_separation_is_that_of_the_closest_clients_across_the_parts():
  # 40 degrees within the first part; 140 and 180 to the third client.
  def turn(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]

  updates = [turn(0), turn(40), turn(180)]
  apart = np.sin(np.radians(70))  # sqrt((1 - cos 140) / 2)
  assert split_of(updates, gamma=apart - 0.01) == [0, 0, 1]
  assert split_of(updates, gamma=apart + 0.01) == [0, 0, 0]


def test_splits_leave_alone_what_cannot_be_compared():
  options = {
    'max_clusters': 4, 'eps1': 0.4, 'eps2': 0.0, 'gamma': 0.1, 'min_size': 2,
    'linkage': 'complete',
  }  # fmt: skip
  everyone = np.zeros(8, np.int32)
  orthogonal = np.eye(8)  # Every cut is as good as any other.
  overflowed = np.full((8, 8), np.nan)
  np.fill_diagonal(overflowed, np.inf)
  for products in (orthogonal, overflowed):
    assignment, count = split_clusters(products, np.ones(8), everyone, 1, **options)
    assert len(np.unique(assignment)) == count


def test_clients_that_dropped_out_stay_in_the_cluster_that_is_split():
  products, start = inner_products(np.array([0, 1] * 4)), np.zeros(8, np.int32)
  products[6:] = products[:, 6:] = 0
  after, count = split_clusters(products, np.ones(8), start, 1, **SPLIT)
  assert count == 2
  np.testing.assert_array_equal(after[6:], 0)


@pytest.mark.parametrize('seed', range(4))
def test_the_single_bipartition_is_the_best_of_all(seed):
  u = np.random.default_rng(seed).normal(size=(7, 3))
  u /= np.linalg.norm(u, axis=1, keepdims=True)
  s = u @ u.T

  def across(part):
    return s[np.ix_(~part, part)].max()

  every = [np.array([bool(mask >> i & 1) for i in range(7)]) for mask in range(1, 2**6)]
  got = bipartition(s, 'single')
  assert across(got) == pytest.approx(min(across(p) for p in every))


def test_fed_cluster_matches_float64_reference():
  # Checks in rounds 2, 4 and 6 part the clients twice, in different clusters.
  data = helpers.federation([30] * 9, groups=np.arange(9) % 3)
  local = helpers.local(batch_size=10, epochs=2)
  criteria = {'eps1': 0.6, 'gamma': 0.4, 'min_size': 2}
  algorithm = algorithms.build(
    'fed_cluster', local, max_clusters=4, eps2=0.0, min_rounds=0, check_every=2,
    **criteria,
  )  # fmt: skip
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in range(4)]
  assignment, count, counts, values = np.zeros(9, int), 1, [], []
  for r in range(1, 9):
    key = jax.random.fold_in(jax.random.key(9), r)
    starts = [centers[k] for k in assignment]
    trained = reference_round(local, data, starts, range(9), key)
    points = np.stack([reference.flat(w) for w in trained])
    updates = points - np.stack([reference.flat(c) for c in starts])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, assignment, np.ones(9), old)
    values.append(reference.objective(points, new, assignment))
    if r % 2 == 0:
      before = assignment
      assignment, count = reference.split(updates, before, count, **criteria)
      for k in range(count):
        new[k] = new[before[assignment == k][0]]  # Both parts go on from there.
    centers = [unflatten(c, centers[0]) for c in new]
    counts.append(count)
  state, infos = run(algorithm, data, rounds=8)
  assert sorted(set(counts)) == [1, 2, 3]
  assert counts == [int((i.clusters.sizes > 0).sum()) for i in infos]
  np.testing.assert_array_equal(state.assignment, assignment)
  assert sum(int(i.clusters.moved) for i in infos) > 0
  assert all(info.updates is None for info in infos)
  assert_close([i.clusters.objective for i in infos], values, rtol=1e-3)
  for k in range(count):
    got = reference.flat(reference.from_params(state.centers, k))
    assert_close(got, reference.flat(centers[k]), rtol=1e-3)


def test_fed_clusters_mean_update_weighs_clients_as_its_centers_do():
  # Two clients of 10 to 1 examples at a stationary point of their weighted mean:
  # 10 u_1 + u_2 = 0, so the cluster has converged while its clients have not.
  u = np.array([[1.0], [1.0], [-10.0], [-10.0]])
  sizes = np.array([10.0, 10.0, 1.0, 1.0])
  options = SPLIT | {'eps1': 0.1, 'min_size': 1}

  def split(weights):
    return split_clusters(u @ u.T, weights, np.zeros(4, np.int32), 1, **options)

  assignment, count = split(sizes)
  assert count == 2
  np.testing.assert_array_equal(assignment, [0, 0, 1, 1])
  assert split(np.ones(4))[1] == 1  # Alike, their mean is -4.5.
  # Clients of weight 0 have no mean update that could be small.
  assert split(np.zeros(4))[1] == 1


@pytest.mark.parametrize(('eps1', 'count'), [
  (0.5, 2),  # The mean is 0.3, 0.2 of the largest update.
  (0.1, 1),
  (0.25, 2),  # The mean is a third of the smallest update.
])  # fmt: skip
def test_fed_clusters_eps1_is_relative_to_the_largest_update(eps1, count):
  u = np.array([[1.5, 0.0], [1.5, 0.0], [-0.9, 0.0], [-0.9, 0.0]])
  options = SPLIT | {'eps1': eps1, 'min_size': 1}
  found = split_clusters(u @ u.T, np.ones(4), np.zeros(4, np.int32), 1, **options)
  assert found[1] == count


def test_fed_clusters_state_holds_no_matrix_of_clients():
  data = helpers.federation([4] * 50)
  algorithm = algorithms.build('fed_cluster', helpers.local(), max_clusters=2)
  state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  model = sum(x.size for x in jax.tree.leaves(state.centers))
  assert sum(x.size for x in jax.tree.leaves(state)) == model + 50 + 2
