"""FLUX: descriptors against float64, their clusters, and clients without labels."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.server import descriptors
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  over_seeds,
  run,
)


def reference_descriptors(model, data, num_classes, components):
  """[M, G, C], as the paper's authors describe clients."""
  points = np.random.default_rng(1).uniform(size=(200, model[-1][0].shape[0]))
  middle = points.mean(axis=0)
  directions = np.linalg.svd(points - middle)[2][:components]
  for direction in directions:
    direction *= np.sign(direction[np.abs(direction).argmax()])
  features = []
  for i in range(data.num_clients):
    x, y = data.client(i)
    hidden = x.reshape(len(x), -1).astype(np.float64)
    for kernel, bias in model[:-1]:
      hidden = np.maximum(hidden @ kernel + bias, 0)
    features.append((hidden, y))
  reach = 1.02 * max(hidden.max() for hidden, _ in features)
  result = []
  for hidden, y in features:
    low = (hidden - reach * middle) @ directions.T
    parts = [low] + [low[y == label] for label in range(num_classes)]
    lacking = [part is not low and len(part) < 2 for part in parts]
    nothing = np.full(components, -1.0)
    pairs = zip(parts, lacking, strict=True)
    of = [
      (nothing, nothing) if lacks else (part.mean(axis=0), part.std(axis=0))
      for part, lacks in pairs
    ]
    means, deviations = zip(*of, strict=True)
    result.append([means[0], deviations[0], *means[1:], *deviations[1:]])
  return np.array(result)


def test_descriptors_match_float64_reference():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('flux', local, warmup_rounds=2)
  state, _ = run(algorithm, data, rounds=2)
  model = reference.from_params(state.described_by, 0)
  everyone = helpers.everyone(data)
  result = descriptors.moments(local, state.described_by, data, everyone)
  reach = result.reach(np.ones(6, bool))
  want = reference_descriptors(model, data, helpers.CLASSES, 3)
  assert_close(result.descriptors(reach), want, rtol=1e-3, atol=1e-3)
  assert (want == -1).any()  # Some clients lack a class.
  assert int(state.numbers) == want[0].size
  # All models go on from the average, each with the clients that were found.
  clusters, _ = descriptors.by_descriptors(
    want, np.ones(6, bool), np.arange(6), 1.0, reach, 6
  )
  np.testing.assert_array_equal(state.assignment, clusters)
  centers = matrix(state.centers)
  np.testing.assert_array_equal(centers, np.repeat(centers[:1], len(centers), axis=0))


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, rate=0.3, hidden=())
  return algorithms.build('flux', local, warmup_rounds=2, eps_scaling=2.0)


def of_groups(groups, size, seed=0):
  """Clients whose features of each class, and their spread, depend on their group."""
  data = helpers.federation([size] * len(groups), seed=seed, groups=groups)
  group, rng = np.repeat(groups, size), np.random.default_rng(seed)
  y = rng.integers(0, helpers.CLASSES, len(group)).astype(np.int32)
  x = 0.3 * data.x * (1 + group[:, None])
  x += 3 * np.eye(6)[(y + group) % 3] + 3 * np.eye(6)[3 + group]
  return dataclasses.replace(data, x=x.astype(np.float32), y=y)


def padded(data):
  """The same with two clients that have no examples."""
  return data.reorder(np.arange(12), num_clients=14)


@over_seeds(3)
def test_recovers_planted_clusters_without_their_number(seed):
  groups = np.arange(12) % 3
  data = padded(of_groups(groups, 200, seed))
  state, infos = run(planted(), data, rounds=4, seed=seed)
  assert adjusted_rand_score(groups, state.assignment[:12]) == 1.0
  assert [int(info.clusters.moved) for info in infos] == [0, 8, 0, 0]
  assert np.count_nonzero(infos[1].clusters.sizes) == 3
  assert int(infos[1].clusters.sizes.sum()) == 12


def test_clients_without_labels_get_the_cluster_of_like_features():
  algorithm, data = planted(), padded(of_groups(np.arange(12) % 3, 200))
  unseen_models = jax.jit(algorithm.unseen_models)
  before = unseen_models(initial(algorithm, data), data)
  assert not np.asarray(before.choice).any()
  state, _ = run(algorithm, data, rounds=3)
  groups = np.array([2, 1, 0, 0, 1, 2])
  others = of_groups(groups, 100, seed=7)
  others = dataclasses.replace(others, y=others.y * 0)
  own = np.asarray(state.assignment)
  np.testing.assert_array_equal(unseen_models(state, others).choice, own[groups])


@pytest.mark.parametrize('seed', range(20))
def test_the_radius_reaches_the_pair_whose_distance_it_is(seed):
  points = np.random.default_rng(seed).normal(size=(6, 40))
  apart = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
  near = np.sort(apart, axis=1)[:, 1]
  own, radius = descriptors.dbscan(points, np.arange(6))
  assert np.abs(near / radius - 1).min() < 2e-6
  alone = np.bincount(own)[own] == 1
  np.testing.assert_array_equal(alone, near > radius)
