import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fesem_jax import em, sharding, tree
from fesem_jax.local import train_cohort
from tests import helpers, reference


def blobs(num_clients=60, k=3, size=20, spread=1.0, seed=0):
  rng = np.random.default_rng(seed)
  truth = np.arange(num_clients) % k
  points = 4 * rng.normal(size=(k, size))[truth] + spread * rng.normal(
    size=(num_clients, size)
  )
  return points.astype(np.float32), truth


def as_stack(points):
  """Two leaves of different rank."""
  return {
    'a': jnp.asarray(points[:, :8]).reshape(-1, 2, 4),
    'b': jnp.asarray(points[:, 8:]),
  }


def as_points(stack):
  return np.concatenate(
    [np.asarray(x, np.float64).reshape(len(x), -1) for x in stack.values()], axis=1
  )


def kmeans(key, points, exists, k, **kwargs):
  run = lambda key, stack, exists: em.kmeans(
    key, stack, exists, k, jnp.arange(len(points)), **kwargs
  )
  return jax.jit(run)(jax.random.key(key), as_stack(points), exists)


def test_e_step_is_the_nearest_center_and_ties_go_to_the_smallest():
  points, _ = blobs()
  centers = np.concatenate([points[5:6], points[2:3], points[5:6]])
  got, distance = em.e_step(as_stack(points), as_stack(centers))
  want = reference.nearest(points.astype(np.float64), centers.astype(np.float64))
  np.testing.assert_array_equal(got, want)
  squared = np.square(points - centers[want]).sum(axis=1)
  np.testing.assert_allclose(distance, squared, rtol=1e-5)
  assert got[5] == 0
  assert got.dtype == jnp.int32


@pytest.mark.parametrize('weighted', [False, True])
def test_m_step_is_the_mean_and_empty_centers_stay(weighted):
  points, truth = blobs()
  rng = np.random.default_rng(1)
  weights = rng.integers(1, 9, len(points)) if weighted else np.ones(len(points))
  centers = np.concatenate([points[:3], np.full((1, 20), 7, np.float32)])
  got = em.m_step(
      as_stack(points), jnp.asarray(truth), jnp.asarray(weights, jnp.float32),
      as_stack(centers),
  )  # fmt: skip
  want = reference.means(points.astype(np.float64), truth, weights, centers)
  np.testing.assert_allclose(as_points(got), want, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(as_points(got)[3], 7)


def test_objective_is_equation_6():
  points, truth = blobs()
  centers = points[:3].astype(np.float64)
  counts = jnp.arange(len(points)) % 5 > 0
  got = em.objective(as_stack(points), as_stack(points[:3]), jnp.asarray(truth), counts)
  kept = np.asarray(counts)
  want = reference.objective(points[kept].astype(np.float64), centers, truth[kept])
  np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize('seeding', ['random', 'plusplus'])
@pytest.mark.parametrize('limit', [512, 40])
def test_kmeans_is_as_good_as_scikit_learn(seeding, limit, monkeypatch):
  # With the low limit, restarts see a sample and the best is refined on all.
  monkeypatch.setattr(em, 'GRAM_CLIENTS', limit)
  monkeypatch.setattr(em, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  points, truth = blobs(spread=2.0)
  exists = jnp.ones(len(points), bool)
  got = kmeans(0, points, exists, 3, seeding=seeding)
  best = KMeans(3, n_init=50, random_state=0).fit(points)
  assert adjusted_rand_score(truth, got.assignment) == 1.0
  np.testing.assert_allclose(got.objective, best.inertia_ / len(points), rtol=1e-5)
  # A fixed point of the E-step and the M-step of the reference.
  again, centers = reference.lloyd(points.astype(np.float64), as_points(got.centers))
  np.testing.assert_array_equal(again, got.assignment)
  np.testing.assert_allclose(as_points(got.centers), centers, rtol=1e-4, atol=1e-5)


def test_restarts_only_ever_improve():
  points, _ = blobs(k=6, spread=2.5, seed=3)
  exists = jnp.ones(len(points), bool)
  run = lambda n: float(kmeans(1, points, exists, 6, restarts=n).objective)
  singles = [
    float(kmeans(s, points, exists, 6, restarts=1).objective) for s in range(6)
  ]
  assert max(singles) > min(singles) * 1.01  # Single starts do get stuck here.
  assert run(40) <= min(singles) * (1 + 1e-5)


def test_kmeans_does_not_see_clients_that_do_not_exist():
  points, _ = blobs()
  padded = np.concatenate([points, np.full((4, 20), 1e3, np.float32)])
  exists = jnp.arange(64) < 60
  got = kmeans(0, padded, exists, 3)
  alone = kmeans(0, points, exists[:60], 3)
  np.testing.assert_allclose(got.objective, alone.objective, rtol=1e-5)


@pytest.mark.parametrize('seeding', ['random', 'plusplus'])
def test_kmeans_of_coinciding_clients_has_no_nan(seeding):
  same = np.ones((5, 20), np.float32)
  got = kmeans(0, same, jnp.ones(5, bool), 3, seeding=seeding)
  assert np.isfinite(as_points(got.centers)).all()
  assert got.objective == 0


@pytest.mark.parametrize('k', [1, 5])
def test_kmeans_with_one_and_with_as_many_centers_as_clients(k):
  points = blobs()[0][:5]
  got = kmeans(0, points, jnp.ones(5, bool), k)
  assert len(set(np.asarray(got.assignment).tolist())) == k
  if k == 1:
    np.testing.assert_allclose(
      as_points(got.centers)[0], points.mean(axis=0), rtol=1e-4, atol=1e-5
    )
  else:
    assert got.objective < 1e-9


@pytest.mark.parametrize('limit', [512, 40])
def test_trimmed_kmeans_ignores_outliers(limit, monkeypatch):
  monkeypatch.setattr(em, 'GRAM_CLIENTS', limit)
  monkeypatch.setattr(em, 'GRAM_CLIENTS_PER_CLUSTER', 1)
  points, truth = blobs()
  points[::30] += 40  # Two of sixty.
  sound = np.arange(60) % 30 != 0
  exists = jnp.ones(60, bool)
  got = kmeans(0, points, exists, 3, trim=0.1)
  assert adjusted_rand_score(truth[sound], got.assignment[sound]) == 1.0
  # Against the reference: a fixed point of trimming and averaging.
  centers = as_points(got.centers)
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
  kept = em.keep_nearest(distance, cluster, exists, 2, 0.4)  # floor: 2 of 5, 0 of 2.
  assert kept.tolist() == [False, True, False, True, True, True, False, True]
  assert em.keep_nearest(distance, cluster, exists, 2, 0.0).tolist() == exists.tolist()


def test_steps_on_two_devices_are_those_on_one():
  points, truth = blobs()
  mesh = sharding.client_mesh(2)
  stack, centers = as_stack(points), as_stack(points[:3])
  one, two = (
    jax.jit(em.e_step, static_argnums=2)(stack, centers, m) for m in (None, mesh)
  )
  np.testing.assert_array_equal(one[0], two[0])
  np.testing.assert_allclose(one[1], two[1], rtol=1e-6)
  weights = jnp.ones(len(points))
  means = [
    em.m_step(stack, jnp.asarray(truth), weights, centers, m) for m in (None, mesh)
  ]
  np.testing.assert_allclose(
    as_points(means[0]), as_points(means[1]), rtol=1e-5, atol=1e-6
  )


def test_a_round_counts_clients_and_not_padding():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.arange(4), num_clients=6)
  local = helpers.local()
  trained = train_cohort(
    local, tree.expand(local.model.init(jax.random.key(0))), jnp.zeros(6, jnp.int32),
    data, helpers.everyone(data), jax.random.key(1),
  )  # fmt: skip
  before, after = jnp.array([0, 0, 1, 1, 0, 0]), jnp.array([1, 0, 0, 1, 0, 1])
  info = em.round_info(trained, 3, jnp.float32(2), before, after, data)
  np.testing.assert_array_equal(info.clusters.sizes, [2, 2, 0])
  assert info.clusters.sizes.dtype == jnp.int32
  assert int(info.clusters.moved) == 2
  assert (int(info.trained), int(info.failed)) == (4, 0)
  np.testing.assert_array_equal(info.clusters.assignment, after)


def test_padding_is_drawn_last():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.arange(4), num_clients=8)
  for number in range(5):
    key, mesh = jax.random.key(number), sharding.client_mesh(2)
    cohort = em.sample_clients(key, data, 3, mesh)
    assert set(cohort.ids[:3].tolist()) < {0, 1, 2, 3}
    assert cohort.ids.tolist()[3:] == [8]  # An empty place, for two devices.
    assert sorted(em.sample_clients(key, data, 4, mesh).ids.tolist()) == [0, 1, 2, 3]


def test_seeds_of_kmeans_plusplus_lie_in_different_groups():
  rng = np.random.default_rng(0)
  group = np.arange(12) % 3
  points = 100 * rng.normal(size=(3, 8))[group] + 0.01 * rng.normal(size=(12, 8))
  gram = jnp.asarray(points @ points.T, jnp.float32)
  found = []
  for number in range(20):
    keys = jax.random.split(jax.random.key(number), 12)
    seeds = em._seed(keys, gram, jnp.ones(12, bool), 3, 'plusplus')
    assert sorted(group[np.asarray(seeds)]) == [0, 1, 2]
    found.append(int(seeds[0]))
  assert len(set(found)) > 5  # The first seed is any client.


def test_inner_products_are_about_the_mean_and_zero_where_not_valid():
  points, _ = blobs(8)
  valid = np.arange(8) != 2
  points[2] = np.nan
  got = np.asarray(em.centered_gram(as_stack(points), jnp.asarray(valid)))
  kept = points[valid].astype(np.float64)
  kept -= kept.mean(axis=0)
  np.testing.assert_allclose(
    got[np.ix_(valid, valid)], kept @ kept.T, rtol=1e-3, atol=1e-2
  )
  assert not got[2].any()
  assert not got[:, 2].any()
