"""Whether new clusters are taken, and what becomes of centers, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.algorithms.common.first_clusters import Clustering, FirstClusters
from fesem_jax.algorithms.wrappers import reclustering
from fesem_jax.core.types import Cohort
from tests.support import helpers

KEY = jax.random.key(0)


@pytest.fixture
def check(monkeypatch):
  """A check whose clients' models, and new clusters, are given."""

  def run(points, own, new, sizes=None, ids=None, others=(), weighting='uniform'):
    starts, count = [], len(points)
    ids = np.arange(count) if ids is None else np.array(ids)
    sizes = np.array([2] * count if sizes is None else sizes)
    real = np.flatnonzero(sizes).max() + 1
    data = helpers.federation(sizes[:real]).reorder(np.arange(real), len(sizes))
    params = {'w': jnp.array(points, jnp.float32)[:, None]}

    def clustered(local, start, *args, **options):
      starts.append(float(start.shared['w'][0, 0]))
      trained = helpers.trained(params, sizes[ids], ids=ids)
      seeds = {'w': jnp.zeros((2, 1))}
      return FirstClusters(jnp.array(new), seeds, seeds, trained, params, params)

    monkeypatch.setattr(reclustering, 'train_and_cluster', clustered)
    centers = {'w': jnp.array([[1.0], [4.0]])}
    assignment = np.zeros(len(sizes), np.int32)
    assignment[ids] = own
    for i, k in others:
      assignment[i] = k
    cohort = Cohort(ids, everyone=len(ids) == len(sizes))
    found = reclustering.recluster(
      helpers.local(), centers, jnp.array(assignment), jnp.array(own), data, cohort,
      KEY, Clustering(weighting=weighting),
    )  # fmt: skip
    return starts[0], found

  return run


@pytest.mark.parametrize(('more', 'changed'), [(0.05, True), (0.02, False)])
def test_each_client_that_moves_must_lower_eq_6_by_a_tenth_of_its_part(
  more, changed, check
):
  # Two of three points are a cluster: at 0 and 2, Eq. 6 is 2/3; at 2 and 4 + x, it is
  # 2 (1 + x/2)^2 / 3. One of three clients moves.
  _, found = check([0.0, 2.0, 4.0 + more], [0, 1, 1], [0, 0, 1])
  assert bool(found.changed) == changed
  assert found.assignment.tolist() == ([0, 0, 1] if changed else [0, 1, 1])
  want = 2 / 3 if changed else 2 * (1 + more / 2) ** 2 / 3
  np.testing.assert_allclose(found.objective, want, rtol=1e-5)


def left(share):
  """Five points; if the last two leave, this share of Eq. 6 is left.

  It is 2 a^2 of 2 a^2 + 1.2 10^2.
  """
  a = np.sqrt(60 * share / (1 - share))
  return [-a, a, 0.0, 10.0, 10.0]


ONE, TWO = [0] * 5, [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
  ('share', 'own', 'sizes', 'changed'),
  [
    # 5 - 2 of 5 - 1 degrees of freedom, and a half of that: 0.375.
    (0.3, ONE, [2] * 6, True),
    (0.45, ONE, [2] * 6, False),
    # Where all clients take part, or as many clusters are used, there is no such rule.
    (0.45, ONE, [2] * 5, True),
    (0.45, ONE, [2] * 5 + [0], True),
    (0.45, [0, 0, 1, 1, 1], [2] * 6, True),
    (0.45, [0, 1, 1, 0, 0], [2] * 6, True),
  ],
)
def test_a_part_of_the_clients_uses_more_clusters_only_where_variance_halves(
  share, own, sizes, changed, check
):
  _, found = check(left(share), own, TWO, sizes, range(5))
  assert bool(found.changed) == changed
