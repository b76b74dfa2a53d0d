"""Descriptors of clients against float64 and by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import models
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.server import descriptors
from fesem_jax.server.descriptors import FAR, Moments, Placing
from tests.support import helpers


def test_components_are_those_of_200_random_points():
  directions, middle = descriptors.projection(4, 2)
  points = np.random.default_rng(1).uniform(size=(200, 4))
  mean = points.mean(axis=0)
  values, vectors = np.linalg.eigh(np.cov(points.T))
  expected = vectors[:, np.argsort(-values)[:2]]
  np.testing.assert_allclose(np.abs(directions), np.abs(expected), rtol=1e-4)
  # The largest coordinate of each is positive.
  assert (directions.max(axis=0) == np.abs(directions).max(axis=0)).all()
  np.testing.assert_allclose(middle, mean @ directions, rtol=1e-5)
  assert directions.dtype == middle.dtype == np.float32


def test_moments_are_those_of_all_examples_and_of_each_class():
  # More than a batch, one example, none, and features that are all negative.
  sizes, rng = np.array([150, 1, 0, 7]), np.random.default_rng(0)
  x = 3 + rng.normal(size=(sizes.sum(), 6)).astype(np.float32)
  x[-7:] -= 20
  y = rng.integers(0, 3, len(x))
  y[:2], y[2:150] = 0, y[2:150] % 2 + 1  # Two examples of the first client's class 0.
  data = FederatedData.from_arrays(x, y, sizes, num_classes=3)
  local = helpers.local(hidden=())
  model = jax.tree.map(lambda p: p[None], helpers.first_model(local))
  result = descriptors.moments(local, model, data, helpers.everyone(data))
  directions, middle = descriptors.projection(6, 3)
  np.testing.assert_array_equal(result.middle, middle)
  assert result.values.shape == (4, 8, 3)
  for i in range(4):
    rows, labels = data.client(i)
    low = rows.astype(np.float64) @ directions
    groups = [low, *(low[labels == label] for label in range(3))]
    means, deviations = (
      [f(g, axis=0) if len(g) else np.zeros(3) for g in groups]
      for f in (np.mean, np.std)
    )
    want = [means[0], deviations[0], *means[1:], *deviations[1:]]
    np.testing.assert_allclose(result.values[i], want, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(result.counts[i], [len(g) for g in groups])
    np.testing.assert_allclose(result.largest[i], rows.max(initial=0))


# Two clients of two classes, with descriptors of two numbers.
SOME = Moments(
  values=jnp.arange(24.0).reshape(2, 6, 2),
  counts=jnp.array([[3.0, 2.0, 1.0], [1.0, 0.0, 1.0]]),
  largest=jnp.array([5.0, 9.0]),
  middle=jnp.array([1.0, -0.5]),
)


def test_random_points_reach_a_little_farther_than_features():
  everyone, first = jnp.array([True, True]), jnp.array([True, False])
  np.testing.assert_allclose(SOME.reach(everyone), 9 * 1.02)
  np.testing.assert_allclose(SOME.reach(first), 5 * 1.02)
  assert SOME.reach(~everyone) == 0


def test_classes_of_less_than_two_examples_are_lacking():
  # Means, not deviations, are about 10 times the middle, which is 10 and -5.
  nothing = [-1, -1]
  np.testing.assert_array_equal(
    SOME.descriptors(jnp.float32(10)),
    [
      [[-10, 6], [2, 3], [-6, 10], nothing, [8, 9], nothing],
      [[2, 18], [14, 15], nothing, nothing, nothing, nothing],
    ],
  )


def test_others_get_the_cluster_of_nearest_mean_and_deviation():
  # In units of the spans, the first client is at (-1, 1) and (2, 3).
  def placed(centroids, deviations):
    pairs = zip(centroids, deviations, strict=True)
    both = jnp.array([[list(c), list(d)] for c, d in pairs], jnp.float32)
    placing = Placing(both, jnp.array([-6.0, 0.0]), jnp.array([4.0, 1.0]), 10.0)
    return int(placing.nearest(SOME)[0])

  at, far = [(-1, 3)], [(9, 9)]
  assert placed(at + far, [(2, 3)] * 2) == 0
  assert placed(far + at, [(2, 3)] * 2) == 1
  assert placed(at * 2, [(2, 1), (2, 4)]) == 1
  # A negative difference is one, too; and of equal clusters the first is taken.
  assert placed([(-9, 3), (1, 3)], [(2, 3)] * 2) == 1
  assert placed(far + at * 2, [(2, 3)] * 3) == 1


def test_before_there_are_clusters_all_are_in_the_first():
  placing = Placing.in_one_cluster(3, 2)
  assert placing.centroids.shape == (3, 2, 2)
  assert (placing.centroids[1:] == FAR).all()
  far = SOME._replace(values=SOME.values + 1e6)
  result = placing.nearest(far)
  assert result.tolist() == [0, 0]
  assert result.dtype == jnp.int32
  np.testing.assert_array_equal(placing.centroids[0], np.zeros((2, 2)))
  np.testing.assert_array_equal(placing.least, [0, 0])
  np.testing.assert_array_equal(placing.span, [1, 1])
  assert placing.reach == 0
  assert {x.dtype for x in placing} == {np.dtype(np.float32)}


def test_features_are_inputs_of_the_last_dense_layer_one_row_an_example():
  model = models.build('mlp', (2, 3), 3, (5,))
  params = model.init(jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (4, 2, 3))
  hidden = descriptors.features_of(model)(params, x)
  kernel, bias = (np.asarray(params['dense0'][n]) for n in ('kernel', 'bias'))
  want = np.maximum(np.asarray(x).reshape(4, 6) @ kernel + bias, 0)
  np.testing.assert_allclose(hidden, want, rtol=1e-4, atol=1e-5)
