"""Every aggregation against float64 references written from the equations."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.server import robust
from tests.support import helpers, random_federations
from tests.support.methods import assert_close, federation, matrix
from tests.support.nights import rest_by_night

ROWS, CLUSTERS = 24, 5
# Clusters of many rows, of three, two and one, and one without.
SIZES = [16, 3, 2, 1]


def bounded(points, origin, bound):
  changes = points - origin
  lengths = np.sqrt((changes**2).sum(axis=1))
  longest = bound or np.median(lengths)
  factors = np.minimum(1, longest / lengths)
  return origin + (changes * factors[:, None]).mean(axis=0)


def krum(points, beta, models):
  n = len(points)
  neighbors = max(n - int(np.floor(beta * n + 1e-9)) - 2, 1)
  scores = []
  for i in range(n):
    others = np.delete(points, i, axis=0)
    scores.append(np.sort(((others - points[i]) ** 2).sum(axis=1))[:neighbors].sum())
  return points[np.argsort(scores, kind='stable')[:models]].mean(axis=0)


# What `aggregation` takes -> the reference.
RULES = {
  'mean': lambda x, o: x.mean(axis=0),
  'median': lambda x, o: np.median(x, axis=0),
  'trimmed_mean(0.2)': lambda x, o: stats.trim_mean(x, 0.2),
  'norm_bound': lambda x, o: bounded(x, o, 0),
  'norm_bound(2.0)': lambda x, o: bounded(x, o, 2.0),
  'krum': lambda x, o: krum(x, robust.BAD_SHARE, 1),
  'krum(3)': lambda x, o: krum(x, robust.BAD_SHARE, 3),
}


def clients(seed=57):  # One neighbor more or less is another Krum.
  """Rows of five clusters, some far off or not counted, and the clusters' origins."""
  rng = np.random.default_rng(seed)
  stack = helpers.two_layers(rng, ROWS)
  stack['a'] = stack['a'].at[:3].add(20.0)  # Of the first cluster.
  cluster = np.repeat(np.arange(4), SIZES)
  cluster = np.concatenate([cluster, [0, 1]])  # Two that do not count.
  counts = np.arange(ROWS) < sum(SIZES)
  return stack, cluster, counts, helpers.two_layers(rng, CLUSTERS)


@functools.partial(jax.jit, static_argnames='devices')
def centers(stack, cluster, counts, origins, devices=1):
  """Name of each rule -> centers."""
  mesh = sharding.client_mesh(devices)
  rules = {name: robust.aggregation(name) or robust.mean for name in RULES}
  split = sharding.split_clients((stack, jnp.asarray(cluster)), mesh)
  return {name: rule(*split, counts, origins, mesh) for name, rule in rules.items()}


@pytest.mark.parametrize('devices', [1, 2])
def test_rules_match_float64_references(devices):
  stack, cluster, counts, origins = clients()
  points, about = matrix(stack), matrix(origins)
  for name, got in centers(*clients(), devices=devices).items():
    for k in range(4):
      want = RULES[name](points[(cluster == k) & counts], about[k])
      np.testing.assert_allclose(matrix(got)[k], want, 1e-4, 1e-5, err_msg=name)
    np.testing.assert_array_equal(matrix(got)[4], about[4])  # Nobody is there.


@random_federations.tried(10)
@hypothesis.given(st.integers(0, 99), st.permutations(range(16)))
def test_order_does_not_matter_and_equal_clients_give_their_model(seed, order):
  *rows, origins = clients(seed)
  expected = centers(*rows, origins)
  order = np.array([*order, *range(16, ROWS)])  # Krum's scores of fewer may be equal.
  turned = jax.tree.map(lambda x: np.asarray(x)[order], rows)
  random_federations.assert_same(centers(*turned, origins), expected)
  of_cluster = np.array([0, 16, 19, 21, 0])  # The first client of each, or any.
  equal = jax.tree.map(lambda x: np.asarray(x)[of_cluster[rows[1]]], rows[0])
  for name, got in centers(equal, *rows[1:], origins).items():
    if name != 'norm_bound(2.0)':  # Which a center follows but for so much.
      assert_close(matrix(got)[:4], matrix(rows[0])[of_cluster[:4]])


def test_numbers_of_aggregations_have_defaults():
  assert robust.aggregation('mean') is None
  assert {name.split('(')[0] for name in RULES} == set(robust._RULES)
  for name, number in (('trimmed_mean', '0.1'), ('norm_bound', '0'), ('krum', '1')):
    result = [robust.aggregation(text).args for text in (name, f'{name}({number})')]
    assert result[0] == result[1]
  assert robust.aggregation('norm_bound(1e-3)').args == (1e-3,)


def test_models_near_the_ends_of_float32_do_not_harm():
  points = np.zeros((6, 4), np.float32)
  points[:3] = np.arange(12).reshape(3, 4)
  points[3] = 3e37
  points[4] = -3e37
  args = np.zeros(6, np.int32), np.arange(6) < 5, np.zeros((1, 4), np.float32)
  for name, aggregate in (
    ('median', robust.aggregation('median')),
    ('norm_bound', robust.aggregation('norm_bound')),
    ('krum', functools.partial(robust.krum, 0.4, 1)),
  ):
    got = jax.jit(aggregate)(points, *args)
    assert np.isfinite(got).all(), name
    assert np.abs(got).max() < 20, name


def test_krum_tells_models_apart_that_lie_close_together():
  # Distances of 1e-4 between models of size 1: |w|^2 - 2 w v + |v|^2 has no such digit.
  rng = np.random.default_rng(0)
  middle = rng.normal(size=(1, 500))
  scales = np.roll(np.arange(1, 13), 5)  # The middle one is neither first nor last.
  points = middle + 1e-4 * rng.normal(size=(12, 500)) * scales[:, None]
  points = points.astype(np.float32)
  args = np.zeros(12, np.int32), np.ones(12, bool), middle.astype(np.float32)
  got = jax.jit(functools.partial(robust.krum, 0.25, 1))(points, *args)
  want = krum(points.astype(np.float64), 0.25, 1)
  np.testing.assert_allclose(got[0], want, rtol=0, atol=1e-6)


def test_krum_of_three_counts_one_neighbor_and_of_equal_scores_takes_the_first():
  # Squared distances to the nearest: 4, 1 and 1. With two, the last would be least.
  points = np.array([[3.0], [0.0], [1.0]], np.float32)
  args = np.zeros(3, np.int32), np.ones(3, bool), np.full((1, 1), 9, np.float32)
  for beta in (0.0, 0.34):  # None or one of them may be bad.
    closest = jax.jit(functools.partial(robust.krum, beta, 1))
    assert closest(points, *args)[0, 0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ('aggregation', 'devices'), rest_by_night([('median', 2), ('norm_bound', 1)])
)
def test_fesem_moves_each_center_by_the_rule(aggregation, devices):
  data, local = federation(), helpers.local(chunk=3, devices=devices)
  algorithm = algorithms.build('fesem', local, num_clusters=2, aggregation=aggregation)
  key = jax.random.key(2)
  first = jax.jit(algorithm.init)(key, data)
  # From centers that lie close together, clients go to others than their own.
  close = jax.tree.map(
    lambda c: c[:1] + jnp.array([0, 1e-3]).reshape(-1, *[1] * (c.ndim - 1)),
    first.centers,
  )
  before = first._replace(centers=close)
  after, info = jax.jit(algorithm.step)(before, data, helpers.everyone(data), key)
  points, origins = matrix(after.client_params), matrix(before.centers)
  assignment = np.asarray(after.assignment)
  # The E-step goes by the old centers.
  distances = ((points[:, None] - origins) ** 2).sum(axis=2)
  np.testing.assert_array_equal(assignment, distances.argmin(axis=1))
  assert (assignment != np.asarray(before.assignment)).any()
  want = [RULES[aggregation](points[assignment == k], origins[k]) for k in range(2)]
  assert_close(matrix(after.centers), want)
  client_centers = np.asarray(want)[assignment]
  assert_close(
    info.clusters.objective, ((points - client_centers) ** 2).sum(axis=1).mean(), 1e-3
  )
  if aggregation == 'median':  # The first centers are medians as well.
    points, assignment = matrix(first.client_params), np.asarray(first.assignment)
    want = [np.median(points[assignment == k], axis=0) for k in range(2)]
    assert_close(matrix(first.centers), want)


def test_changes_too_long_for_float32_are_as_long_as_their_median():
  # Their squares are infinite, and so is the median: none is cut.
  points = np.array([[3e37, 0], [1e37, 2e37], [7, 7]], np.float32)
  args = np.array([0, 0, 1]), np.ones(3, bool), np.zeros((2, 2), np.float32)
  got = jax.jit(robust.aggregation('norm_bound'))(points, *args)
  np.testing.assert_allclose(got, [[2e37, 1e37], [7, 7]], rtol=1e-6)
