import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.server import em
from fesem_jax.training.trained import Trained
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


def test_distances_of_clients_that_do_not_count_are_not_read():
  distance = jnp.array([4.0, jnp.inf, 1.0, jnp.nan])
  weights = jnp.array([1.0, 0.0, 3.0, 0.0])
  assert em.mean_distance(distance, weights) == 7 / 4
  assert em.mean_distance(distance, weights / 8) == 7 / 4  # Weights below 1.
  assert em.mean_distance(distance, 0 * weights) == 0


COUNTS = np.array([1, 4, 3, 0, 2])  # Examples; the last client drops out.
OWN, NEAREST = np.array([0, 1, 2, 0, 1]), np.array([2, 1, 2, 1, 1])


def a_chunk():
  """Five clients, of whom three count, and three centers."""
  rng = np.random.default_rng(0)
  points = rng.normal(size=(5, 20)).astype(np.float32)
  centers = rng.normal(size=(3, 20)).astype(np.float32)
  arrived = jnp.arange(5) < 4
  trained = Trained(
    jnp.arange(5), helpers.as_stack(points), jnp.ones(5), jnp.asarray(COUNTS),
    jnp.ones(5, bool), arrived, jnp.ones(5, jnp.int32),
  )  # fmt: skip
  weights = COUNTS * np.asarray(arrived)
  return trained, points.astype(np.float64), centers.astype(np.float64), weights


def squared(points, centers):
  return np.square(points[:, None] - centers[None]).sum(axis=2)


def test_sums_over_chunks_give_equation_6_before_and_after_each_step():
  trained, points, centers, weights = a_chunk()
  old = helpers.as_stack(centers.astype(np.float32))
  apart, rows = squared(points, centers), np.arange(5)
  nearest = jnp.asarray(apart[rows, NEAREST], jnp.float32)

  @jax.jit
  def twice(trained, nearest):
    sums = em.Sums.zeros(old, objective_parts=True)
    for _ in range(2):  # The same chunk again changes no mean.
      sums = sums.add(trained, jnp.asarray(NEAREST), nearest, 'by_examples', old)
      sums = sums.add_start_distances(trained, jnp.asarray(OWN), 'by_examples', old)
    new = em.sums.mean_of(sums.clients, old)
    return sums, new, sums.objective(old, new)

  sums, new, value = twice(trained, nearest)
  means = reference.means(points, NEAREST, weights, centers)
  np.testing.assert_allclose(matrix(new), means, rtol=1e-4, atol=1e-5)
  after = squared(points, means)[rows, NEAREST]
  np.testing.assert_allclose(value, np.average(after, weights=weights), rtol=1e-4)
  np.testing.assert_allclose(
    sums.objective_parts(),
    [np.average(apart[rows, k], weights=weights) for k in (OWN, NEAREST)],
    rtol=1e-5,
  )
  plain = em.Sums.zeros(old)
  assert plain.start_distances is None  # By default, steps are not told apart.
  # Without clients, Eq. 6 is 0.
  assert plain.objective(old, old) == 0
  assert em.Sums.zeros(old, objective_parts=True).objective_parts() == (0, 0)


def test_of_a_single_client_of_one_example_equation_6_is_its_distance():
  trained, points, centers, _ = a_chunk()
  trained = jax.tree.map(lambda x: x[:1], trained)  # It has one example.
  old = helpers.as_stack(centers.astype(np.float32))
  apart = squared(points, centers)[0]
  sums = em.Sums.zeros(old, objective_parts=True)
  nearest = jnp.asarray(apart[2:], jnp.float32)
  sums = sums.add(trained, jnp.array([2]), nearest, 'by_examples', old)
  sums = sums.add_start_distances(trained, jnp.array([0]), 'by_examples', old)
  np.testing.assert_allclose(sums.objective_parts(), apart[[0, 2]], rtol=1e-5)
  np.testing.assert_allclose(sums.objective(old, old), apart[2], rtol=1e-5)
