"""Means and Eq. 6 of very many clients against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import sharding, sums
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.server import em
from tests.support import helpers, reference
from tests.support.methods import matrix

pytestmark = pytest.mark.optimized

SPREAD = 1e-4  # Of the clients about their center, whose parameters are about 1.


@functools.lru_cache(1)
def rows_of(count):
  """Clients about two centers, the centers, and the clients' numbers of examples."""
  rng = np.random.default_rng(0)
  centers = rng.normal(size=(2, 64)).astype(np.float32)
  cluster = rng.integers(0, 2, count).astype(np.int32)
  drift = rng.normal(size=(2, 64)).astype(np.float32)
  noise = rng.standard_normal((count, 64), np.float32)
  rows = centers[cluster] + np.float32(SPREAD) * (drift[cluster] + noise)
  return rows, centers, cluster, rng.integers(1, 300, count).astype(np.int32)


def assert_moves(actual, rows, centers, cluster, weights):
  """Each center's error is below 0.1 % of its move."""
  for k in range(2):
    mine = cluster == k
    mean = np.average(rows[mine].astype(np.float64), axis=0, weights=weights[mine])
    move = np.linalg.norm(mean - centers[k])
    assert np.linalg.norm(np.asarray(actual[k], np.float64) - mean) < 1e-3 * move


@pytest.mark.parametrize(
  ('count', 'devices', 'weighting'),
  [
    (100_000, None, 'uniform'),
    (100_000, 2, 'by_examples'),
    pytest.param(1_000_000, None, 'by_examples', marks=pytest.mark.nightly),
    pytest.param(1_000_000, 2, 'uniform', marks=pytest.mark.nightly),
  ],
)
def test_mean_and_equation_6_of_a_stack(count, devices, weighting):
  rows, centers, cluster, sizes = rows_of(count)
  weights = np.ones(count) if weighting == 'uniform' else sizes
  mesh = devices and sharding.client_mesh(devices)
  stack, about = {'w': jnp.asarray(rows)}, {'w': jnp.asarray(centers)}
  new = jax.jit(em.m_step, static_argnums=4)(
    stack, jnp.asarray(cluster), jnp.asarray(weights, jnp.float32), about, mesh
  )
  assert_moves(new['w'], rows, centers, cluster, weights)
  value = jax.jit(em.objective)(
    stack, new, jnp.asarray(cluster), jnp.asarray(weights, jnp.float32)
  )
  apart = rows.astype(np.float64) - np.asarray(new['w'], np.float64)[cluster]
  expected = np.average(np.square(apart).sum(axis=1), weights=weights)
  np.testing.assert_allclose(value, expected, rtol=1e-4)


@pytest.mark.parametrize(
  ('count', 'weighting'),
  [
    (20_000, 'by_examples'),
    pytest.param(1_000_000, 'uniform', marks=pytest.mark.nightly),
  ],
)
def test_a_round_of_fesem_streamed_and_stacked(count, weighting):
  # A step so small that models move and differ by about 1e-4.
  rng = np.random.default_rng(1)
  sizes = rng.integers(1, 3, count)
  x = rng.normal(1, 0.5, size=(sizes.sum(), 15)).astype(np.float32)
  data = FederatedData.from_arrays(x, np.zeros(len(x), int), sizes, num_classes=4)
  local = helpers.local(
    batch_size=0, rate=SPREAD, chunk=500, hidden=(), shape=(15,), classes=4
  )
  start = jax.tree.map(
    lambda s: jnp.asarray(rng.uniform(-1, 1, (1, *s.shape)), jnp.float32),
    jax.eval_shape(local.model.init, jax.random.key(0)),
  )
  after = {}
  for kept in ('stacked', 'streamed'):
    algorithm = algorithms.build(
      'fesem', local, num_clusters=1, weighting=weighting, client_state=kept
    )
    like = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    state = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
    state = state._replace(centers=start)
    after[kept] = jax.jit(algorithm.step)(
      state, data, helpers.everyone(data), jax.random.key(2)
    )
  rows = matrix(after['stacked'][0].client_params)
  weights = np.ones(count) if weighting == 'uniform' else sizes
  mean = np.average(rows, axis=0, weights=weights)
  move = np.linalg.norm(mean - matrix(start)[0])
  for state, info in after.values():
    center = matrix(state.centers)[0]
    assert np.linalg.norm(center - mean) < 1e-3 * move
    value = np.average(np.square(rows - center).sum(axis=1), weights=weights)
    np.testing.assert_allclose(info.clusters.objective, value, rtol=1e-3)


def test_a_sum_of_many_equal_terms_keeps_its_digits():
  # One after the other in float32, a million terms of 0.1 give 100,958.
  term = np.float32(0.1)

  def add(i, carry):
    return (None, carry[1] + term)

  _, actual = jax.jit(lambda: sums.add_up(10**6, add, None, jnp.float32(0)))()
  np.testing.assert_allclose(actual, 10**6 * float(term), rtol=2e-4)
  np.testing.assert_allclose(
    jax.jit(sums.total)(jnp.full(10**6, term)), 10**6 * float(term), rtol=2e-4
  )


@pytest.mark.parametrize('size', [1, 2, 7, 1000])
def test_total_adds_every_element(size):
  x = np.random.default_rng(size).normal(size=size).astype(np.float32)
  np.testing.assert_allclose(sums.total(jnp.asarray(x)), x.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('size', [4, 5000])  # 5,000: row by row.
@pytest.mark.parametrize('devices', [None, 2])
def test_weighted_mean_matches_reference_and_keeps_empty_clusters(devices, size):
  rng = np.random.default_rng(1)
  points, centers = helpers.two_layers(rng, 6, size), helpers.two_layers(rng, 3, size)
  mesh = devices and sharding.client_mesh(devices)
  cluster = jnp.array([0, 2, 0, 2, 2, 0])
  weights = jnp.array([1.0, 2.0, 5.0, 0.0, 1.0, 0.5])
  actual = jax.jit(sums.weighted_mean, static_argnums=4)(
    points, cluster, weights, centers, mesh
  )
  expected = reference.means(
    matrix(points), np.asarray(cluster), np.asarray(weights), matrix(centers)
  )
  np.testing.assert_allclose(matrix(actual), expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(actual['a'][1], centers['a'][1])


@pytest.mark.parametrize(('count', 'most'), [(0, 5), (1, 1), (300, 300), (260, 900)])
def test_every_term_is_added_once_whatever_their_limit(count, most):
  # Beyond 256 terms, sums are made in two levels.
  def add(i, carry):
    seen, (total, number) = carry
    return seen.at[i].add(i), (total + i, number + 1)

  @jax.jit
  def run(count):
    first = jnp.int32(7), jnp.int32(2)
    return sums.add_up(count, add, jnp.zeros(most, jnp.int32), first, most)

  seen, (total, number) = run(jnp.int32(count))
  np.testing.assert_array_equal(
    seen, np.where(np.arange(most) < count, np.arange(most), 0)
  )
  assert (int(total), int(number)) == (7 + sum(range(count)), 2 + count)


@pytest.mark.parametrize('size', [4, 5000])
def test_sums_go_on_from_those_of_other_rows(size):
  rng = np.random.default_rng(3)
  points, centers = helpers.two_layers(rng, 7, size), helpers.two_layers(rng, 3, size)
  weights = jnp.array([2.0, 0.5, 0.0, 3.0, 1.0, 4.0, 0.25])
  cluster = jnp.array([2, 0, 1, 2, 0, 2, 2])

  @functools.partial(jax.jit, static_argnums=0)
  def in_two(first, points, centers):
    result = sums.no_sums(centers)
    for rows in (slice(0, first), slice(first, 7)):
      some = jax.tree.map(lambda x, rows=rows: x[rows], points)
      result = sums.add_rows(result, some, cluster[rows], weights[rows], centers)
    return result, sums.mean_of(result, centers)

  expected = reference.means(
    matrix(points), np.asarray(cluster), weights, matrix(centers)
  )
  for first in (1, 4):
    result, means = in_two(first, points, centers)
    np.testing.assert_allclose(result.weight, [1.5, 0, 9.25])
    np.testing.assert_allclose(matrix(means), expected, rtol=1e-5, atol=1e-5)
    apart = matrix(result.params)
    np.testing.assert_allclose(
      apart[0], (expected[0] - matrix(centers)[0]) * 1.5, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(('num_rows', 'num_clusters'), [(6, 3), (300, 2), (20, 17)])
def test_large_layers_are_added_on_accelerators_too(
  num_rows, num_clusters, monkeypatch
):
  monkeypatch.setattr(sums.platforms, 'choose', lambda cpu, other, *args: other(*args))
  rng = np.random.default_rng(5)
  points, centers = (
    {'w': rng.normal(size=(n, 5, 1000)).astype(np.float32)}
    for n in (num_rows, num_clusters)
  )
  cluster = rng.integers(0, num_clusters, num_rows).astype(np.int32)
  weights = rng.random(num_rows).astype(np.float32)
  actual = jax.jit(sums.weighted_mean)(points, cluster, weights, centers)
  expected = reference.means(matrix(points), cluster, weights, matrix(centers))
  np.testing.assert_allclose(matrix(actual), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('at_once', [1, 2**24])
def test_layers_of_any_size_are_added_in_blocks(at_once, monkeypatch):
  # Of a layer larger than a block, one row at a time; a layer may have no numbers.
  monkeypatch.setattr(sums, '_NUMBERS_AT_ONCE', at_once)
  rng = np.random.default_rng(6)
  points, centers = helpers.two_layers(rng, 5), helpers.two_layers(rng, 2)
  cluster, weights = jnp.array([0, 1, 1, 0, 1]), jnp.array([1.0, 2, 3, 4, 5])
  expected = reference.means(matrix(points), cluster, weights, matrix(centers))
  for stack in (points, centers):
    stack['none'] = jnp.zeros((len(stack['b']), 0))
  # JAX keeps the trace of a function, which would not see the other size.
  traced_anew = jax.jit(lambda *args: sums.weighted_mean(*args))
  actual = traced_anew(points, cluster, weights, centers)
  np.testing.assert_allclose(matrix(actual), expected, rtol=1e-5, atol=1e-6)
