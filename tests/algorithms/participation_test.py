"""What clients deploy that were not drawn, for every method.

Single models: the global model. FeSEM and Robust: their own cluster's center as it is
now. HypoCluster: the center of least training loss as the centers are now. NonFed:
their own model, untouched. FedCluster: every client is drawn in every round.
"""

import jax
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from fesem_jax.run.simulation import simulate
from tests.support import helpers, reference
from tests.support.methods import deployed, matrix

GROUPS = np.arange(8) % 2
DRAWN, REST = np.array([0, 1, 2]), np.arange(3, 8)


def after_a_round(name, **options):
  """States before and after a round of three of eight clients."""
  data = helpers.federation([6] * 8, groups=GROUPS)
  algorithm = algorithms.build(name, helpers.local(), **options)
  before = jax.jit(algorithm.init)(jax.random.key(0), data)
  cohort = Cohort(DRAWN.astype(np.int32), everyone=False)
  after, _ = jax.jit(algorithm.step)(before, data, cohort, jax.random.key(1))
  return algorithm, data, before, after


@pytest.mark.parametrize('name', ['fed_avg', 'fed_dane'])
def test_single_models_serve_all_clients(name):
  algorithm, data, before, after = after_a_round(name)
  models = deployed(algorithm, after, data)
  np.testing.assert_array_equal(models, np.repeat(matrix(after.params), 8, axis=0))
  assert (matrix(after.params) != matrix(before.params)).any()


def test_non_fed_leaves_them_their_own_models():
  algorithm, data, before, after = after_a_round('non_fed')
  models = deployed(algorithm, after, data)
  np.testing.assert_array_equal(models[REST], deployed(algorithm, before, data)[REST])
  assert (models[DRAWN] != deployed(algorithm, before, data)[DRAWN]).any(axis=1).all()


@pytest.mark.parametrize('name', ['fesem', 'robust'])
def test_clusters_that_last_give_them_the_new_center(name):
  algorithm, data, before, after = after_a_round(name, num_clusters=2)
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


@pytest.mark.nightly
def test_figures_of_hypo_cluster_are_of_what_clients_deploy():
  data = helpers.federation([60] * 24, groups=np.arange(24) % 2)
  local = helpers.local(batch_size=10, rate=0.3, hidden=())
  algorithm = algorithms.build('hypo_cluster', local, num_clusters=2)
  result = simulate(
    algorithm,
    data,
    data,
    rounds=6,
    clients_per_round=4,
    eval_every=3,
  )
  row = np.asarray(algorithm.deployed(result.state, result.arranged).choice)[:24]
  truth = result.arranged.info.clusters
  assert result.summary['clusters']['ari'] == adjusted_rand_score(truth, row) == 1.0
  sizes = np.bincount(row, minlength=2).tolist()
  assert result.summary['clusters']['sizes'] == sizes
