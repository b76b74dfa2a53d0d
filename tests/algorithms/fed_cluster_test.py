"""FedCluster: when and how it splits."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.bipartition import (
  bipartition,
  split_clusters,
)
from tests.support import helpers
from tests.support.methods import run

HALF = np.sqrt(0.5)
OPTIONS = {
  'max_clusters': 4, 'eps1': 1.0, 'eps2': 0.5, 'gamma': 0.5,
  'min_size': 2, 'linkage': 'complete',
}  # fmt: skip
APART = np.sin(np.radians(70))  # sqrt((1 - cos 140) / 2)


def split(updates=None, products=None, weights=None, **options):
  """Clusters of clients that were in one, by their updates or inner products."""
  if products is None:
    products = np.array(updates, float) @ np.transpose(updates)
  weights = np.ones(len(products)) if weights is None else np.array(weights)
  start = np.zeros(len(products), np.int32)
  result, count = split_clusters(products, weights, start, 1, **OPTIONS | options)
  assert len(np.unique(result)) == count
  return result.tolist()


def parts(**options):
  """Clusters of four updates of length 1, two along each of two axes.

  The mean update is sqrt(1/2) long, and the parts are sqrt(1/2) apart.
  """
  return max(split(np.repeat(np.eye(2), 2, axis=0), **options)) + 1


@pytest.mark.parametrize(('option', 'bound', 'splits_below'), [
    ('eps1', HALF, False),  # |mean u| < eps1 max |u|
    ('eps2', 1.0, True),  # max |u| > eps2
    ('gamma', HALF, True),  # sqrt((1 - max s) / 2) > gamma
])  # fmt: skip
def test_criteria_are_strict(option, bound, splits_below):
  below, above = np.nextafter(bound, 0), np.nextafter(bound, 2)
  result = [parts(**{option: value}) for value in (below, bound, above)]
  assert result == ([2, 1, 1] if splits_below else [1, 1, 2])


def test_only_clusters_of_more_than_the_least_size_are_split():
  assert [parts(min_size=n) for n in (3, 4, 5)] == [2, 1, 1]
  assert [parts(max_clusters=n) for n in (1, 2)] == [1, 2]


def test_the_first_split_comes_after_the_least_number_of_rounds():
  # Checks are due in rounds 2 and 4; round 2 is not more than two rounds.
  data = helpers.federation([6] * 4, groups=[0, 1] * 2)
  counts = {}
  for least in (1, 2):
    algorithm = algorithms.build(
      'fed_cluster', helpers.local(batch_size=0, chunk=4, hidden=()), max_clusters=2,
      eps1=1.1, eps2=0.0, gamma=0.0, min_size=2, min_rounds=least, check_every=2,
    )  # fmt: skip
    _, infos = run(algorithm, data, rounds=4)
    counts[least] = [int((i.clusters.sizes > 0).sum()) for i in infos]
  assert counts == {1: [1, 2, 2, 2], 2: [1, 1, 1, 2]}
  assert jax.tree.leaves(infos[-1].clusters.sizes)[0].sum() == 4


def turns(*degrees):
  return [[np.cos(np.radians(d)), np.sin(np.radians(d))] for d in degrees]


LINE = [[1.5, 0], [1.5, 0], [-0.9, 0], [-0.9, 0]]


@pytest.mark.parametrize(('updates', 'options', 'clusters'), [
    ([[1, 0], [-1, 0]], {'min_size': 1, 'eps1': 0.5}, [0, 1]),
    ([[1, 0]], {'min_size': 0, 'eps1': 1.1}, [0]),
    # One client with a large update is enough: of length 2, whose mean is 1/2.
    ([[2, 0], [-1, 0]], {'min_size': 1, 'eps1': 0.5, 'eps2': 1.5}, [0, 1]),
    ([[2, 0], [-1, 0]], {'min_size': 1, 'eps1': 0.5, 'eps2': 2.0}, [0, 0]),
    # 40 degrees within the first part; 140 and 180 to the third client.
    (turns(0, 40, 180), {'gamma': APART - 0.01}, [0, 0, 1]),
    (turns(0, 40, 180), {'gamma': APART + 0.01}, [0, 0, 0]),
    # The mean is 0.2 of the largest update, and a third of the smallest one.
    (LINE, {'eps1': 0.25, 'min_size': 1}, [0, 0, 1, 1]),
    (LINE, {'eps1': 0.15, 'min_size': 1}, [0, 0, 0, 0]),
    # Who dropped out stays in the cluster that is split.
    ([[1, 0], [0, 1], [1, 0], [0, 1], [0, 0]], {}, [0, 1, 0, 1, 0]),
    # Every cut of these is as good as any other, and none is far enough.
    (np.eye(8), {'eps1': 0.4, 'gamma': 0.8}, [0] * 8),
])  # fmt: skip
def test_splits_by_hand(updates, options, clusters):
  assert split(updates, **options) == clusters


def test_updates_beyond_float32_leave_their_cluster_alone():
  one = np.array([[4.0, -2.0, np.nan], [-2.0, 1.0, np.nan], [np.nan] * 2 + [np.inf]])
  every = np.where(np.eye(8), np.inf, np.nan)
  for products in (one, every):
    assert not any(split(products=products))


@pytest.mark.parametrize('seed', range(4))
def test_the_single_bipartition_is_the_best_of_all(seed):
  u = np.random.default_rng(seed).normal(size=(7, 3))
  u /= np.linalg.norm(u, axis=1, keepdims=True)
  s = u @ u.T

  def across(part):
    return s[np.ix_(~part, part)].max()

  every = [np.array([bool(mask >> i & 1) for i in range(7)]) for mask in range(1, 2**6)]
  got = bipartition(s, 'single')
  assert across(got) == pytest.approx(min(across(p) for p in every))


def test_fed_clusters_mean_update_weighs_clients_as_its_centers_do():
  # Two clients of 10 to 1 examples at a stationary point of their weighted mean:
  # 10 u_1 + u_2 = 0, so the cluster has converged while its clients have not.
  u = [[1.0], [1.0], [-10.0], [-10.0]]
  options = {'eps1': 0.1, 'eps2': 0.1, 'gamma': 0.3, 'min_size': 1}
  assert split(u, weights=[10, 10, 1, 1], **options) == [0, 0, 1, 1]
  assert not any(split(u, **options))  # Alike, their mean is -4.5.
  # Clients of weight 0 have no mean update that could be small.
  assert not any(split(u, weights=[0] * 4, **options))
