"""Clusters that merge while they are similar, against words."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.clustering.similar_clusters import merge_similar
from tests.support.cluster_steps import stocfl_merged

M, K, TAU = 9, 5, 0.9


def wanted(points, old, new):
  """Clusters of clients, and the number of each; None for a new one."""
  before = [np.flatnonzero(old == k).tolist() for k in range(K)]
  begins = [[int(i)] for i in np.flatnonzero(new)]
  found = stocfl_merged([c for c in before if c] + begins, points, TAU)
  numbers = []
  for cluster in found:
    sizes = [len(c) if c and set(c) <= set(cluster) else 0 for c in before]
    numbers.append(int(np.argmax(sizes)) if max(sizes) else None)
  return found, numbers


def test_clusters_merge_and_are_numbered_as_in_words():
  merge = jax.jit(merge_similar, static_argnums=4)
  rng, merges, news = np.random.default_rng(0), 0, 0
  for _ in range(25):
    angles = rng.choice(3) + rng.normal(size=M) * rng.choice([0.3, 1.5])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points *= rng.uniform(0.01, 0.5, (M, 1))  # Lengths far below 1.
    old = rng.choice([0, 2, 3, K, K], M)
    new = (old == K) & (rng.random(M) < 0.7)
    clusters, numbers = wanted(points, old, new)
    ids = rng.permutation(M)
    own, fresh, count = merge(
      jnp.asarray(points @ points.T, jnp.float32), old, new, 3 * ids, K, TAU
    )
    own, begun = np.asarray(own), []
    assert int(count) == len(clusters)
    used = {n for n in numbers if n is not None}
    free = sorted(set(range(K)) - used)
    # New clusters get what is free, by their clients' least ids.
    late = [c for c, n in zip(clusters, numbers, strict=True) if n is None]
    late.sort(key=lambda c: min(ids[c]))
    given = {min(c): k for c, k in zip(late, free, strict=False)}
    for cluster, number in zip(clusters, numbers, strict=True):
      want = given.get(min(cluster), K) if number is None else number
      assert set(own[cluster].tolist()) == {want}
      if number is None and want < K:
        begun.append(want)
    assert np.flatnonzero(fresh).tolist() == sorted(begun)
    assert (own[(old == K) & ~new] == K).all()
    merges += len(clusters) < len(set(old[old < K].tolist())) + new.sum()
    news += bool(begun)
  assert min(merges, news) > 8
  assert own.dtype == np.int32
