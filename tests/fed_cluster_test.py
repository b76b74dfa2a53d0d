"""FedCluster's criteria at their bounds."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_cluster import split_clusters
from tests import helpers
from tests.algorithms_test import run

HALF = np.sqrt(0.5)
OPTIONS = {'max_clusters': 4, 'eps1': 1.0, 'eps1_scale': 'relative', 'eps2': 0.5,
           'gamma': 0.5, 'min_size': 2, 'linkage': 'complete'}  # fmt: skip


def parts(**options):
  """Clusters after a check of four updates of length 1, two along each of two axes.

  The mean update is sqrt(1/2) long, and the parts are sqrt(1/2) apart.
  """
  products = np.kron(np.eye(2), np.ones((2, 2)))
  start = np.zeros(4, np.int32)
  split = split_clusters(products, np.ones(4), start, 1, **OPTIONS | options)
  return int(split[1])


@pytest.mark.parametrize(('option', 'bound', 'splits_below'), [
    ('eps1', HALF, False),  # |mean u| < eps1 max |u|
    ('eps2', 1.0, True),  # max |u| > eps2
    ('gamma', HALF, True),  # sqrt((1 - max s) / 2) > gamma
])  # fmt: skip
def test_criteria_are_strict(option, bound, splits_below):
  below, above = np.nextafter(bound, 0), np.nextafter(bound, 2)
  found = [parts(**{option: value}) for value in (below, bound, above)]
  assert found == ([2, 1, 1] if splits_below else [1, 1, 2])


def test_only_clusters_of_more_than_the_least_size_are_split():
  assert [parts(min_size=n) for n in (3, 4, 5)] == [2, 1, 1]
  assert [parts(max_clusters=n) for n in (1, 2)] == [1, 2]


def test_the_first_split_comes_after_the_least_number_of_rounds():
  # Checks are due in rounds 2 and 4; round 2 is not more than two rounds.
  data = helpers.federation([6] * 4, groups=[0, 1] * 2)
  counts = {}
  for least in (1, 2):
    algorithm = algorithms.build(
        'fed_cluster', helpers.local(batch_size=0, chunk=4), max_clusters=2, eps1=1.1,
        eps2=0.0, gamma=0.0, min_size=2, min_rounds=least, check_every=2,
    )  # fmt: skip
    _, infos = run(algorithm, data, rounds=4)
    counts[least] = [int((i.clusters.sizes > 0).sum()) for i in infos]
  assert counts == {1: [1, 2, 2, 2], 2: [1, 1, 1, 2]}
  assert jax.tree.leaves(infos[-1].clusters.sizes)[0].sum() == 4


def split_of(updates, **options):
  updates = np.array(updates, float)
  count = len(updates)
  found, _ = split_clusters(
    updates @ updates.T,
    np.ones(count),
    np.zeros(count, np.int32),
    1,
    **OPTIONS | options,
  )
  return found.tolist()


def test_a_cluster_of_two_can_be_split():
  assert split_of([[1, 0], [-1, 0]], min_size=1, eps1=0.5) == [0, 1]
  assert split_of([[1, 0], [-1, 0]], min_size=0, eps1=0.5) == [0, 1]
  assert split_of([[1, 0]], min_size=0, eps1=1.1) == [0]


def test_the_separation_is_that_of_the_closest_clients_across_the_parts():
  # 40 degrees within the first part; 140 and 180 to the third client.
  turn = lambda degrees: [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]
  updates = [turn(0), turn(40), turn(180)]
  apart = np.sin(np.radians(70))  # sqrt((1 - cos 140) / 2)
  assert split_of(updates, gamma=apart - 0.01) == [0, 0, 1]
  assert split_of(updates, gamma=apart + 0.01) == [0, 0, 0]
