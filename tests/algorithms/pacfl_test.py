"""PACFL against float64, and the clusters that it finds."""

import dataclasses
from typing import get_args

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.server import subspaces
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import initial, matrix

SHAPE = (12,)
# Of four groups: each has an image of each label of its own, with noise.
GROUPS = np.array([0, 1, 2, 3, 1, 0, 3, 2])
SIZES = np.array([20, 25, 22, 18, 19, 24, 21, 23])


def planted(seed=0, noise=0.2, labels=3):
  """Clients whose examples of a label lie about a line of their group."""
  rng = np.random.default_rng(seed)
  lines = rng.normal(size=(4, labels, *SHAPE))
  group, y = np.repeat(GROUPS, SIZES), rng.integers(0, labels, SIZES.sum())
  x = lines[group, y] * rng.normal(1, 0.3, (len(y), 1))
  x = (x + noise * rng.normal(size=x.shape)).astype(np.float32)
  info = ClientInfo(np.array([f'c{i}' for i in range(len(SIZES))]), GROUPS)
  return FederatedData.from_arrays(x, y, SIZES, num_classes=3, info=info)


@pytest.mark.parametrize('rule', get_args(subspaces.Proximity))
def test_recovers_planted_clusters_before_training(rule):
  data, local = planted(), helpers.local(shape=SHAPE, hidden=())
  algorithm = algorithms.build('pacfl', local, num_vectors=1, proximity=rule)
  state = initial(algorithm, data)
  assert adjusted_rand_score(GROUPS, state.assignment) == 1.0
  # Clusters are numbered by their first clients.
  np.testing.assert_array_equal(state.assignment, GROUPS)
  np.testing.assert_array_equal(state.numbers_sent, [3 * 12] * 8)
  assert (matrix(state.centers) == matrix(state.centers)[0]).all()


def test_a_client_whose_examples_are_zero_has_no_directions_and_is_with_the_first():
  data, local = planted(), helpers.local(shape=SHAPE, hidden=())
  algorithm = algorithms.build('pacfl', local, num_vectors=1, proximity='entries')
  x = np.array(data.x)
  x[SIZES[:3].sum() : SIZES[:4].sum()] = 0
  state = initial(algorithm, dataclasses.replace(data, x=x))
  # The other client of its group is on its own.
  np.testing.assert_array_equal(
    state.assignment, np.where(np.arange(8) == 3, 0, GROUPS)
  )
  np.testing.assert_array_equal(state.numbers_sent, 36 * (np.arange(8) != 3))


def test_the_order_of_clients_with_equal_examples_does_not_matter():
  data, local = planted(), helpers.local(shape=SHAPE, hidden=())
  x, y = data.client(0)
  # Two groups of three clients, and three clusters.
  x = np.concatenate([x, x, x, *[np.roll(x, 3, axis=1)] * 3])
  y = np.tile(y, 6)
  algorithm = algorithms.build(
    'pacfl', local, num_clusters=3, num_vectors=1, proximity='entries'
  )
  result = []
  for order in (np.arange(6), np.array([2, 5, 0, 4, 3, 1])):
    rows = (order[:, None] * SIZES[0] + np.arange(SIZES[0])).ravel()
    federation = FederatedData.from_arrays(
      x[rows], y[rows], np.full(6, SIZES[0]), num_classes=3, client_ids=order
    )
    own = np.asarray(initial(algorithm, federation).assignment)
    result.append(own[np.argsort(order)])
  np.testing.assert_array_equal(*result)


def test_spans_that_must_intersect_are_refused():
  data, local = planted(), helpers.local(shape=SHAPE, hidden=())

  def start(**options):
    return initial(algorithms.build('pacfl', local, **options), data)

  # Three labels and twelve features: the spans of two vectors of each just fit.
  with pytest.raises(UserError, match='proximity'):
    start(num_vectors=3)
  assert adjusted_rand_score(GROUPS, start(num_vectors=2).assignment) > 0
  for proximity in ('sum_of_angles', 'entries'):
    result = start(num_vectors=3, proximity=proximity).assignment
    assert adjusted_rand_score(GROUPS, result) == 1.0


def test_a_threshold_finds_the_number_of_clusters():
  data, local = planted(), helpers.local(shape=SHAPE, hidden=())
  options = {'num_vectors': 1, 'proximity': 'sum_of_angles', 'angle_threshold': 60.0}
  state = initial(algorithms.build('pacfl', local, num_clusters=7, **options), data)
  np.testing.assert_array_equal(state.assignment, GROUPS)
