"""Models of clients that were not drawn, and rounds without clients.

FeSEM: their own cluster's center as it is now. HypoCluster: the center of least
training loss as the centers are now.
"""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.client_work import ClientWork
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import deployed, federation, initial, matrix, run
from tests.support.random_federations import assert_equal

GROUPS = np.arange(8) % 2
DRAWN, REST = np.array([0, 1, 2]), np.arange(3, 8)


def after_a_round(name, **options):
  """States before and after a round of three of eight clients."""
  data = helpers.federation([6] * 8, groups=GROUPS)
  algorithm = algorithms.build(name, helpers.local(hidden=()), **options)
  before = jax.jit(algorithm.init)(jax.random.key(0), data)
  cohort = Cohort(DRAWN.astype(np.int32), everyone=False)
  after, _ = jax.jit(algorithm.step)(before, data, cohort, jax.random.key(1))
  return algorithm, data, before, after


def test_clusters_that_last_give_them_the_new_center():
  algorithm, data, before, after = after_a_round('fesem', num_clusters=2)
  own = np.asarray(before.assignment)[REST]
  np.testing.assert_array_equal(np.asarray(after.assignment)[REST], own)
  models = deployed(algorithm, after, data)
  np.testing.assert_array_equal(models[REST], matrix(after.centers)[own])


def test_hypo_cluster_gives_all_the_best_center_of_now():
  algorithm, data, _, after = after_a_round(
    'hypo_cluster', num_clusters=2, init_restarts=1, init_rounds=0
  )
  exchanged = after._replace(  # Every client's last choice is now the wrong one.
    centers=jax.tree.map(lambda c: c[::-1], after.centers)
  )
  for state in (after, exchanged):
    centers = [reference.from_params(state.centers, k) for k in (0, 1)]
    losses = reference.losses(centers, data, range(8))
    best = np.argmin(losses, axis=1)
    np.testing.assert_array_equal(algorithm.deployed(state, data).choice, best)
  assert len(set(best.tolist())) == 2


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('clove', {'num_clusters': 2}),  # Whose first clusters are random.
    ('fed_ala', {}),  # In whose first round no weights are learned.
    ('fed_group', {'num_clusters': 2}),
  ],
)
def test_a_round_without_clients_changes_nothing(name, options):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(name, local, **options)
  before, empty = initial(algorithm, data), Cohort(np.full(2, 6, np.int32), False)
  after, _ = jax.jit(algorithm.step)(before, data, empty, jax.random.key(1))
  assert_equal(after, before)


@pytest.mark.parametrize(
  ('name', 'options'),
  [('fed_group', {'num_clusters': 2}), ('stocfl', {})],
)
def test_clients_from_elsewhere_have_no_work_of_clients_of_their_numbers(name, options):
  groups = np.arange(6) % 2
  data = helpers.federation([20] * 6, groups=groups)
  local = helpers.local(hidden=())
  alike = algorithms.build(name, local, **options)
  state, _ = run(alike, data, rounds=1)
  work = ClientWork(rates=np.full(6, 1e-30))  # With which models do not move.
  other = algorithms.build(name, local._replace(work=work), **options)
  found = [jax.jit(each.of_unseen)(state, data).choice for each in (alike, other)]
  assert len(set(found[0].tolist())) == 2
  np.testing.assert_array_equal(*found)
