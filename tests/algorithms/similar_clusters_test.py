"""Clusters that merge while they are similar, against words."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.similar_clusters import merge_similar
from tests.support.cluster_steps import stocfl_merged

M, K, TAU = 9, 5, 0.9
merge = jax.jit(merge_similar, static_argnums=4)


def expected(points, old, new):
  """Clusters of clients, and the number of each; None for a new one."""
  before = [np.flatnonzero(old == k).tolist() for k in range(K)]
  begins = [[int(i)] for i in np.flatnonzero(new)]
  result = stocfl_merged([c for c in before if c] + begins, points, TAU)
  numbers = []
  for cluster in result:
    sizes = [len(c) if c and set(c) <= set(cluster) else 0 for c in before]
    numbers.append(int(np.argmax(sizes)) if max(sizes) else None)
  return result, numbers


def test_clusters_merge_and_are_numbered_as_in_words():
  rng, merges, news = np.random.default_rng(0), 0, 0
  for _ in range(25):
    angles = rng.choice(3) + rng.normal(size=M) * rng.choice([0.3, 1.5])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points *= rng.uniform(0.01, 0.5, (M, 1))  # Lengths far below 1.
    old = rng.choice([0, 2, 3, K, K], M)
    new = (old == K) & (rng.random(M) < 0.7)
    clusters, numbers = expected(points, old, new)
    ids = rng.permutation(M)
    assignment, fresh = merge(
      jnp.asarray(points @ points.T, jnp.float32), old, new, 3 * ids, K, TAU
    )
    assignment, begun = np.asarray(assignment), []
    used = {n for n in numbers if n is not None}
    free = sorted(set(range(K)) - used)
    # New clusters get what is free, by their clients' least ids.
    late = [c for c, n in zip(clusters, numbers, strict=True) if n is None]
    late.sort(key=lambda c: min(ids[c]))
    numbers_values = {min(c): k for c, k in zip(late, free, strict=False)}
    for cluster, number in zip(clusters, numbers, strict=True):
      want = numbers_values.get(min(cluster), K) if number is None else number
      assert set(assignment[cluster].tolist()) == {want}
      if number is None and want < K:
        begun.append(want)
    assert np.flatnonzero(fresh).tolist() == sorted(begun)
    assert (assignment[(old == K) & ~new] == K).all()
    merges += len(clusters) < len(set(old[old < K].tolist())) + new.sum()
    news += bool(begun)
  assert min(merges, news) > 8
  assert assignment.dtype == np.int32


def merged(points, threshold):
  """Clusters of new clients alone, in the order of their ids."""
  count = len(points)
  points = np.pad(points, ((0, M - count), (0, 0)))
  products, new = jnp.asarray(points @ points.T, jnp.float32), np.arange(M) < count
  result = merge(products, np.full(M, K), new, jnp.arange(M), K, threshold)
  return result._replace(assignment=result.assignment[:count].tolist())


def test_a_cosine_as_large_as_the_threshold_is_similar():
  points = np.array([[1, 1, 1, 1], [1, 1, 1, -1]])  # Their cosine is 2 / 4.
  assert merged(points, 0.5).assignment == [0, 0]
  assert merged(points, 0.5001).assignment == [0, 1]


def test_a_description_of_length_0_is_at_right_angles_to_all_others():
  points = np.array([[1, 0], [0, 0], [2, 0]])
  assert merged(points, 0.9).assignment == [0, 1, 0]
  assert merged(points, 0.0).assignment == [0, 0, 0]


def test_what_is_similar_only_to_the_mean_of_two_clusters_joins_them_afterwards():
  # Two at 12 degrees from the first axis, to either side; one at 24, upwards.
  a, b = np.radians([12, 24])
  points = np.array(
    [[np.cos(a), np.sin(a), 0], [np.cos(a), -np.sin(a), 0], [np.cos(b), 0, np.sin(b)]]
  )
  assert points[0] @ points[2] < TAU < min(points[0] @ points[1], np.cos(b))
  assert merged(points, TAU).assignment == [0, 0, 0]


def test_clusters_beyond_the_last_number_have_none():
  result = merged(np.eye(K + 2), 0.5)
  assert result.assignment == [*range(K), K, K]
  assert result.fresh.all()


def test_opposite_clusters_stay_apart_at_a_threshold_of_0():
  # Nor are they linked by places that no client has, whose cosines would be 0.
  assert merged(np.array([[1, 0], [-1, 0]]), 0.0).assignment == [0, 1]
