"""DBSCAN with a radius computed from the data, by hand."""

import numpy as np
import pytest

from fesem_jax.server import descriptors
from fesem_jax.server.descriptors import FAR


@pytest.mark.parametrize(
  ('values', 'knee'),
  [
    ([0, 0, 1, 3, 4, 7, 9], 2),  # Of two bends, the first does not fall far enough.
    ([0, 0, 2, 6, 7, 9, 10, 12], 6),  # Of two that do, the one of large values counts.
    ([1, 1, 2, 6], 2),
    ([2, 3, 4, 7], None),
    ([1, 2, 3, 4, 5, 6], None),  # A straight line.
    # Bent the other way, or nearly straight at its upper end: the largest value.
    ([0, 1, 3, 4, 4], 4),
    ([5, 10, 16, 18], 3),
    ([0, 3, 5, 6, 10, 11, 11], 6),
    ([1, 4, 5, 13, 17, 19, 19], 6),
    ([0, 1, 5, 6, 20], 3),
    ([0, 0, 1, 3, 8, 10], 2),
    ([5, 5, 5, 5], None),
    ([0, 0, 0, 1, 4], 2),  # Of a flat top, the point of the smaller value.
    # Behind a valley, however flat, a small knee counts once the curve is below 0 ...
    ([0, 8, 26, 40, 50, 105, 125, 130, 160], 7),
    ([0, 9, 17, 25, 34, 36, 46, 52, 64], 5),  # ... unless another comes before that.
  ],
)
def test_knees_of_small_curves(values, knee):
  # Those of kneed 0.8.5, the library of FLUX's authors.
  assert descriptors.knee(np.array(values, float)) == knee
  # Neither the unit nor the origin of values matters.
  assert descriptors.knee(7 + 2 * np.array(values, float)) == knee


def test_equal_points_are_one_cluster():
  with np.errstate(all='raise'):
    labels, radius = descriptors.dbscan(np.full((4, 2), 3.0), np.arange(4))
  assert labels.tolist() == [0, 0, 0, 0]
  assert radius < 1e-300


def test_without_a_knee_the_radius_is_the_largest_distance_to_a_neighbor():
  points, ids = np.array([[0.0], [1.0], [3.0]]), np.arange(3)
  labels, radius = descriptors.dbscan(points, ids)
  assert labels.tolist() == [0, 0, 0]
  np.testing.assert_allclose(radius, 2, rtol=2e-6)
  labels, radius = descriptors.dbscan(points, ids, 0.5)
  assert labels.tolist() == [0, 0, 1]
  np.testing.assert_allclose(radius, 1, rtol=2e-6)


def test_the_radius_is_the_distance_at_the_knee():
  # To the nearest neighbors: 1, 1, 2, and 6; the knee is at the third.
  points = np.array([[0.0], [1.0], [3.0], [9.0]])
  labels, radius = descriptors.dbscan(points, np.array([7, 3, 5, 1]))
  np.testing.assert_allclose(radius, 2, rtol=2e-6)
  assert labels.tolist() == [1, 1, 1, 0]
  for few in (0, 1):
    labels, radius = descriptors.dbscan(points[:few], np.arange(few))
    assert (labels.tolist(), radius) == ([0] * few, 0)
  # Two points are each other's neighbors.
  assert descriptors.dbscan(points[:2], np.arange(2))[0].tolist() == [0, 0]


def test_a_point_that_is_left_is_in_no_cluster():
  points = np.array([[0.0], [0.1], [5.0], [5.1], [50.0]])
  assert descriptors.dbscan(points, np.arange(5))[0].tolist() == [0, 0, 1, 1, 2]


# Four groups of two numbers each: mean, deviation, and those of one class.
VALUES = np.array(
  [
    [[0, 1], [2, 2.5], [1, 1], [7, 7]],
    [[6, 6], [2, 2.5], [1.5, 1.5], [7, 7]],  # Not counted.
    [[10, 9], [4, 4], [1.5, 1.5], [7, 7]],
    [[0, 2], [2, 3], [1, 1], [7, 7]],
    [[10, 10], [4, 3.5], [1.5, 1.5], [7, 7]],
  ]
)
COUNTED = np.array([True, False, True, True, True])


def clusters(ids, scaling):
  return descriptors.by_descriptors(
    VALUES, COUNTED, np.asarray(ids), scaling, np.float32(5), 3
  )


def test_every_group_of_descriptors_is_scaled_to_a_range_of_one():
  assignment, placing = clusters(np.arange(5), 1.0)
  np.testing.assert_array_equal(placing.least, [0, 2])
  np.testing.assert_array_equal(placing.span, [10, 2])
  means = [[[0, 0.15], [0, 0.375]], [[1, 0.95], [1, 0.875]]]
  np.testing.assert_allclose(placing.centroids[:2], means, rtol=1e-6)
  np.testing.assert_array_equal(placing.centroids[2], np.full((2, 2), np.float32(FAR)))
  assert placing.reach == 5
  assert {x.dtype for x in placing} == {np.dtype(np.float32)}
  # By its mean, the client that is not counted would be nearer to the second cluster.
  assert assignment.tolist() == [0, 0, 1, 0, 1]
  assert assignment.dtype == np.int32
  # Numbers follow ids.
  assert clusters(9 - np.arange(5), 1.0)[0].tolist() == [1, 1, 0, 1, 0]
  # A radius too small for any pair.
  few = np.float32(5)
  alone, _ = descriptors.by_descriptors(VALUES, COUNTED, np.arange(5), 0.5, few, 4)
  assert alone[COUNTED].tolist() == [0, 1, 2, 3]
