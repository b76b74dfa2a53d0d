"""K-means over client models against scikit-learn and float64."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fesem_jax.server import kmeans
from tests.support import helpers, reference
from tests.support.methods import matrix
from tests.support.nights import rest_by_night


@functools.partial(jax.jit, static_argnames=('k', 'limits', 'options'))
def compiled(key, stack, exists, *, k, limits, options):
  """One program for all calls that differ in arrays only."""
  assert limits == (kmeans.GRAM_CLIENTS, kmeans.GRAM_CLIENTS_PER_CLUSTER)
  ids = jnp.arange(exists.size)
  return kmeans.kmeans(key, stack, exists, k, ids, **dict(options))


def run_kmeans(key, points, exists, k, **options):
  return compiled(
    jax.random.key(key),
    helpers.as_stack(points),
    exists,
    k=k,
    limits=(kmeans.GRAM_CLIENTS, kmeans.GRAM_CLIENTS_PER_CLUSTER),
    options=tuple(options.items()),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('seeding', 'limit'),
  rest_by_night([('random', 512), ('random', 40), ('plusplus', 40)]),
)
@pytest.mark.optimized
def test_kmeans_is_as_good_as_scikit_learn(seeding, limit, monkeypatch):
  # With the low limit, restarts see a sample and the best is refined on all.
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS', limit)
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  points, truth = helpers.blobs(spread=2.0)
  exists = jnp.ones(len(points), bool)
  got = run_kmeans(0, points, exists, 3, seeding=seeding)
  best = KMeans(3, n_init=50, random_state=0).fit(points)
  assert adjusted_rand_score(truth, got.assignment) == 1.0
  np.testing.assert_allclose(got.objective, best.inertia_ / len(points), rtol=1e-5)
  # A fixed point of the E-step and the M-step of the reference.
  again, centers = reference.lloyd(points.astype(np.float64), matrix(got.centers))
  np.testing.assert_array_equal(again, got.assignment)
  np.testing.assert_allclose(matrix(got.centers), centers, rtol=1e-4, atol=1e-5)


@pytest.mark.optimized
def test_the_clusters_of_a_sample_are_refined_on_all_until_none_moves(monkeypatch):
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS', 40)
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  # Without any groups, as many iterations as it takes.
  points = helpers.blobs(spread=50.0)[0]
  exists = jnp.ones(len(points), bool)
  got = run_kmeans(0, points, exists, 3, seeding='random')
  again, centers = reference.lloyd(points.astype(np.float64), matrix(got.centers))
  np.testing.assert_array_equal(again, got.assignment)
  np.testing.assert_allclose(matrix(got.centers), centers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('seeding', ['random', 'plusplus'])
def test_kmeans_of_coinciding_clients_has_no_nan(seeding):
  same = np.ones((5, 20), np.float32)
  got = run_kmeans(0, same, jnp.ones(5, bool), 3, seeding=seeding)
  chex.assert_tree_all_finite(got.centers)
  assert got.objective == 0


@pytest.mark.parametrize('k', [1, 5])
def test_kmeans_with_one_and_with_as_many_centers_as_clients(k):
  points = helpers.blobs()[0][:5]
  got = run_kmeans(0, points, jnp.ones(5, bool), k)
  assert len(set(np.asarray(got.assignment).tolist())) == k
  if k == 1:
    np.testing.assert_allclose(
      matrix(got.centers)[0], points.mean(axis=0), rtol=1e-4, atol=1e-5
    )
  else:
    assert got.objective < 1e-9


@pytest.mark.parametrize('limit', [512, 40])
def test_trimmed_kmeans_ignores_outliers(limit, monkeypatch):
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS', limit)
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  points, truth = helpers.blobs()
  points[::30] += 40  # Two of sixty.
  sound = np.arange(60) % 30 != 0
  exists = jnp.ones(60, bool)
  got = run_kmeans(0, points, exists, 3, trim=0.1)
  assert adjusted_rand_score(truth[sound], got.assignment[sound]) == 1.0
  # Against the reference: a fixed point of trimming and averaging.
  centers = matrix(got.centers)
  assignment = np.asarray(got.assignment)
  distance = ((points - centers[assignment]) ** 2).sum(axis=1)
  for k in range(3):
    mine = np.flatnonzero(assignment == k)
    kept = mine[np.argsort(-distance[mine])][int(0.1 * len(mine) + 1e-9) :]
    np.testing.assert_allclose(
      centers[k], points[kept].astype(np.float64).mean(axis=0), rtol=1e-4, atol=1e-4
    )


def test_keep_nearest_drops_the_farthest_of_each_cluster():
  distance = jnp.array([5.0, 1, 4, 2, 3, 9, 8, 7])
  cluster = jnp.array([0, 0, 0, 0, 0, 1, 1, 1])
  exists = jnp.arange(8) != 6

  def keep(trim):
    return kmeans.keep_nearest(distance, cluster, exists, 2, trim).tolist()

  # Of 5 and 2 clients, floor(0.4 * 5) = 2 and floor(0.4 * 2) = 0 are dropped.
  assert keep(0.4) == [False, True, False, True, True, True, False, True]
  assert keep(0.0) == exists.tolist()


def test_seeds_of_kmeans_plusplus_lie_in_different_groups():
  rng = np.random.default_rng(0)
  group = np.arange(12) % 3
  points = 100 * rng.normal(size=(3, 8))[group] + 0.01 * rng.normal(size=(12, 8))
  gram = jnp.asarray(points @ points.T, jnp.float32)
  result = []
  seeds_of = jax.jit(kmeans._seed, static_argnums=(3, 4))
  for number in range(20):
    keys = jax.random.split(jax.random.key(number), 12)
    seeds = seeds_of(keys, gram, jnp.ones(12, bool), 3, 'plusplus')
    assert sorted(group[np.asarray(seeds)]) == [0, 1, 2]
    result.append(int(seeds[0]))
  assert len(set(result)) > 5  # The first seed is any client.
  # The unit of length does not matter: the same ones, if all is 2^20 times shorter.
  short = seeds_of(keys, gram * 2.0**-40, jnp.ones(12, bool), 3, 'plusplus')
  np.testing.assert_array_equal(short, seeds)
  # Of clients that coincide, different ones still.
  same = seeds_of(keys, 0 * gram, jnp.ones(12, bool), 3, 'plusplus')
  assert len(set(same.tolist())) == 3


@pytest.mark.parametrize('seeding', ['random', 'plusplus'])
@pytest.mark.parametrize('sound', [1, 2])
def test_kmeans_with_fewer_sound_clients_than_centers(seeding, sound):
  points = 5 + np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
  result = run_kmeans(0, points, jnp.arange(5) < sound, 3, seeding=seeding)
  centers = matrix(result.centers)
  # Every center is a sound client, or the mean of some; none is at the origin.
  for center in centers:
    apart = np.abs(points[:sound] - center).max(axis=1).min()
    mean = np.abs(points[:sound].mean(axis=0) - center).max()
    assert min(apart, mean) < 1e-5


def test_restarts_see_all_clients_or_many_more_than_centers():
  seen = [kmeans.clients_seen(m, k) for m, k in ((100, 4), (256, 4), (1000, 4))]
  assert seen == [100, 256, 256]
  assert [kmeans.clients_seen(1000, k) for k in (8, 9, 20, 40)] == [256, 288, 640, 1000]


@pytest.mark.parametrize('limit', [512, 40])
def test_centers_and_equation_6_are_means_by_weight(limit, monkeypatch):
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS', limit)
  monkeypatch.setattr(kmeans, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  points, truth = helpers.blobs()
  exists, ids = np.arange(60) % 10 != 9, jnp.arange(60)
  weights = np.arange(60) % 7 * exists * 0.25
  run = jax.jit(
    lambda stack, weights: kmeans.kmeans(jax.random.key(0), stack, weights, 3, ids)
  )
  got = run(helpers.as_stack(points), jnp.asarray(weights, jnp.float32))
  # Those left out, too, get the nearest center.
  assert adjusted_rand_score(truth, got.assignment) == 1.0
  assignment, exact = np.asarray(got.assignment), points.astype(np.float64)
  means = reference.means(exact, assignment, weights, np.zeros((3, 20)))
  np.testing.assert_allclose(matrix(got.centers), means, rtol=1e-4, atol=1e-4)
  apart = np.square(exact - means[assignment]).sum(axis=1)
  np.testing.assert_allclose(
    got.objective, np.average(apart, weights=weights), rtol=1e-4
  )


# The client at (0, 99) has no weight, and the last one does not exist.
POINTS = np.array(
  [[7, 3], [-1, -1], [-1, 4], [-2, 0], [-3, 5], [-1, -3], [-6, 4], [-2, 0], [-2, -1],
   [0, 99], [-4, 9], [7, 50]], float
)  # fmt: skip
WEIGHTS = np.array([4, 4, 1, 4, 1, 4, 2, 2, 2, 0, 1, 0]) / 8
VALID = np.arange(12) < 11


def iterated(seeds, most, weights=WEIGHTS):
  """Weighted k-means of the points: centers, clusters, and iterations."""
  centers, assignment = POINTS[seeds], reference.nearest(POINTS, POINTS[seeds])
  moved, steps = True, 0
  while moved and steps < most:
    centers = reference.means(POINTS, assignment, weights, centers)
    before, assignment = assignment, reference.nearest(POINTS, centers)
    moved, steps = (before != assignment)[VALID].any(), steps + 1
  return centers, assignment, steps


@pytest.mark.parametrize('most', [100, 3])
def test_a_restart_is_weighted_k_means_until_no_client_moves(most, monkeypatch):
  monkeypatch.setattr(kmeans, 'MAX_ITERATIONS', most)
  keys = jax.random.split(jax.random.key(24), 12)
  gram = jnp.asarray(POINTS @ POINTS.T, jnp.float32)
  args = jnp.asarray(VALID), jnp.asarray(WEIGHTS, jnp.float32), 3, 'random', 0.0
  shares, value = kmeans._lloyd(keys, gram, *args)
  seeds = kmeans._seed(keys, gram, args[0], 3, 'random').tolist()
  assert seeds == [1, 9, 5]  # The second center stays with that client.
  centers, assignment, steps = iterated(seeds, most)
  assert steps == min(most, 7)
  np.testing.assert_allclose(shares @ POINTS, centers, rtol=1e-4, atol=1e-4)
  apart = np.square(POINTS - centers[assignment]).sum(axis=1)
  np.testing.assert_allclose(value, np.average(apart, weights=WEIGHTS), rtol=1e-4)


def test_clients_without_weight_are_no_seeds():
  stack, ids = jnp.asarray(POINTS, jnp.float32), jnp.arange(12)
  named = {'num_clusters': 3, 'client_ids': ids, 'restarts': 1}
  run = jax.jit(lambda key: kmeans.kmeans(key, stack, jnp.asarray(WEIGHTS), **named))
  for key in map(jax.random.key, range(2)):
    result = run(key)
    distinct = [
      k for k in range(3) if (WEIGHTS[np.asarray(result.assignment) == k] > 0).any()
    ]
    assert distinct == [0, 1, 2]
