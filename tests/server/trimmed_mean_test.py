"""Trimmed means against SciPy, and against sorted values where there are ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fesem_jax.core import sharding
from fesem_jax.server import trimmed_mean as module
from fesem_jax.server.trimmed_mean import trimmed_mean
from tests.support.methods import assert_close
from tests.support.nights import rest_by_night

# One program in place of dozens of single operations.
compiled = jax.jit(trimmed_mean, static_argnums=(3, 5))


@pytest.mark.parametrize('beta', [0.0, 0.1, 0.34, 0.49, 0.5])
def test_trimmed_mean_matches_scipy(beta):
  rng = np.random.default_rng(0)
  points = rng.normal(size=(23, 4, 3)).astype(np.float32)
  cluster = rng.integers(0, 3, 23)
  counts = rng.random(23) < 0.8
  empty = {'w': jnp.full((4, 4, 3), 7.0)}
  got = compiled(
    {'w': jnp.asarray(points)}, jnp.asarray(cluster), jnp.asarray(counts), beta, empty
  )['w']
  for k in range(3):
    mine = points[(cluster == k) & counts].astype(np.float64)
    want = np.median(mine, 0) if beta == 0.5 else stats.trim_mean(mine, beta)
    assert_close(got[k], want)
  np.testing.assert_array_equal(got[3], 7.0)


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('numbers', [1, 60, 2**20])
def test_trimmed_means_come_out_alike_in_blocks_of_any_size(
  numbers, devices, monkeypatch
):
  monkeypatch.setattr(module, '_NUMBERS_AT_ONCE', numbers)
  rng = np.random.default_rng(0)
  points = rng.normal(size=(24, 4, 7)).astype(np.float32)
  cluster, counts = rng.integers(0, 3, 24), rng.random(24) < 0.8
  origins = {'w': jnp.asarray(rng.normal(size=(4, 4, 7)), jnp.float32)}
  got = jax.jit(trimmed_mean, static_argnums=(3, 5))(
    {'w': jnp.asarray(points)},
    jnp.asarray(cluster),
    jnp.asarray(counts),
    0.2,
    origins,
    sharding.client_mesh(devices),
  )['w']
  for k in range(3):
    mine = points[(cluster == k) & counts].astype(np.float64)
    np.testing.assert_allclose(got[k], stats.trim_mean(mine, 0.2), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got[3], origins['w'][3])


def of_one_cluster(points, beta):
  """The trimmed mean of rows [S, P] that are one cluster, about zero."""
  rows = len(points)
  args = jnp.zeros(rows, jnp.int32), jnp.ones(rows, bool), beta
  return compiled(jnp.asarray(points), *args, jnp.zeros((1, points.shape[1])))[0]


@pytest.mark.parametrize('beta', rest_by_night([0.1, 0.25, 0.4, 0.5], by_day=2))
@pytest.mark.parametrize('rows', [1, 2, 3, 8, 21])
def test_equal_values_count_as_often_as_they_are_kept(rows, beta):
  points = np.random.default_rng(rows).integers(-2, 3, (rows, 40)).astype(np.float32)
  got = of_one_cluster(points, beta)
  cut = min(int(beta * rows), (rows - 1) // 2)
  want = np.sort(points, axis=0)[cut : rows - cut].mean(axis=0)
  np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_values_of_all_sizes_and_signs_are_in_order():
  column = np.float32([-3e38, -1e-37, -0.0, 0.0, 1e-37, 1e-30, 2.5, 3e38, np.inf])
  rng = np.random.default_rng(0)
  points = np.stack([rng.permutation(column) for _ in range(20)], axis=1)
  np.testing.assert_array_equal(of_one_cluster(points, 0.5), np.float32(1e-37))
  # Of the seven that are left, -1e-37 to 3e38.
  np.testing.assert_allclose(of_one_cluster(points, 0.12), 3e38 / 7, rtol=1e-6)


def test_values_that_are_no_numbers_harm_their_own_cluster_only():
  rows = np.float32([1, np.inf, np.nan, 5, 6, 7, -np.inf, np.nan, 2, -np.inf, -3])
  cluster = np.array([0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3])
  counts = np.arange(11) != 7  # Nor do rows that do not count.
  counts[6] = False
  origins = jnp.full((5, 1), 4.0)
  got = compiled(
    jnp.asarray(rows[:, None]), jnp.asarray(cluster), jnp.asarray(counts), 0.1, origins
  )
  np.testing.assert_array_equal(got[:, 0], [np.nan, 6, 4, -np.inf, 4])


@pytest.mark.parametrize('sign', [1, -1])
def test_nan_is_larger_than_all_numbers(sign):
  points = np.float32([[3], [np.copysign(np.nan, sign)], [1], [np.inf], [2]])
  assert of_one_cluster(points, 0.5) == 3
  assert np.isnan(of_one_cluster(points, 0.0))
