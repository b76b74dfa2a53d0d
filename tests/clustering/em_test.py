import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.clustering import em
from fesem_jax.core import sharding
from tests.support import helpers, reference
from tests.support.methods import matrix

pytestmark = pytest.mark.optimized


def test_e_step_is_the_nearest_center_and_ties_go_to_the_smallest():
  points, _ = helpers.blobs()
  centers = np.concatenate([points[5:6], points[2:3], points[5:6]])
  got, distance = em.e_step(helpers.as_stack(points), helpers.as_stack(centers))
  want = reference.nearest(points.astype(np.float64), centers.astype(np.float64))
  np.testing.assert_array_equal(got, want)
  squared = np.square(points - centers[want]).sum(axis=1)
  np.testing.assert_allclose(distance, squared, rtol=1e-5)
  assert got[5] == 0
  assert got.dtype == jnp.int32


@pytest.mark.parametrize('weighted', [False, True])
def test_m_step_is_the_mean_and_empty_centers_stay(weighted):
  points, truth = helpers.blobs()
  rng = np.random.default_rng(1)
  weights = rng.integers(1, 9, len(points)) if weighted else np.ones(len(points))
  centers = np.concatenate([points[:3], np.full((1, 20), 7, np.float32)])
  got = em.m_step(
    helpers.as_stack(points),
    jnp.asarray(truth),
    jnp.asarray(weights, jnp.float32),
    helpers.as_stack(centers),
  )
  want = reference.means(points.astype(np.float64), truth, weights, centers)
  np.testing.assert_allclose(matrix(got), want, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(matrix(got)[3], 7)


def test_objective_is_equation_6():
  points, truth = helpers.blobs()
  centers = points[:3].astype(np.float64)
  counts = jnp.arange(len(points)) % 5 > 0
  got = em.objective(
    helpers.as_stack(points), helpers.as_stack(points[:3]), jnp.asarray(truth), counts
  )
  kept = np.asarray(counts)
  want = reference.objective(points[kept].astype(np.float64), centers, truth[kept])
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_steps_on_two_devices_are_those_on_one():
  points, truth = helpers.blobs()
  mesh = sharding.client_mesh(2)
  stack, centers = helpers.as_stack(points), helpers.as_stack(points[:3])
  one, two = (
    jax.jit(em.e_step, static_argnums=2)(stack, centers, m) for m in (None, mesh)
  )
  np.testing.assert_array_equal(one[0], two[0])
  np.testing.assert_allclose(one[1], two[1], rtol=1e-6)
  weights = jnp.ones(len(points))
  means = [
    jax.jit(em.m_step, static_argnums=4)(stack, jnp.asarray(truth), weights, centers, m)
    for m in (None, mesh)
  ]
  np.testing.assert_allclose(matrix(means[0]), matrix(means[1]), rtol=1e-5, atol=1e-6)
