"""Clustered methods find the clusters that were planted."""

import functools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core import tree
from fesem_jax.data import load
from fesem_jax.data.corruption import corrupted
from tests.support import helpers
from tests.support.methods import over_seeds, run

OPTIONS = {
  'hypo_cluster': {'num_clusters': 2, 'init_restarts': 50},
  'robust': {'num_clusters': 2, 'init_epochs': 5},
  'fed_cluster': {'min_size': 10, 'eps1': 0.6, 'eps2': 0.3, 'gamma': 0.4},
  'fesem': {'num_clusters': 4, 'init_epochs': 3},
}


@functools.cache
def built(name):
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build(name, local, **OPTIONS[name])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'rounds'), [('hypo_cluster', 15), ('robust', 3), ('fed_cluster', 20)]
)
@over_seeds(3)
def test_clustered_methods_recover_planted_clusters(name, rounds, seed):
  groups = np.arange(20) % 2
  data = helpers.federation([60] * 20, seed=seed, groups=groups)
  state, _ = run(built(name), data, rounds=rounds, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0


@over_seeds(3)
def test_fesem_recovers_planted_clusters(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  state, infos = run(built('fesem'), data, rounds=5, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert int(infos[-1].clusters.moved) == 0
  assert infos[-1].train_loss < infos[0].train_loss


@pytest.mark.nightly
def test_the_mean_suffers_from_bad_clients_and_the_median_and_krum_do_not():
  train, test = load('digits', partition='iid', num_clients=20)
  train = corrupted(train, 'sign_flip', 0.3)
  local = helpers.local(
    batch_size=10, chunk=20, hidden=(), shape=train.example_shape, classes=10
  )

  def accuracy(aggregation):
    algorithm = algorithms.build('fed_avg', local, aggregation=aggregation, beta=0.4)
    state, _ = run(algorithm, train, rounds=5)
    logits = local.model.apply(tree.unstack(state.params, 0), test.x * test.scale)
    return (np.asarray(logits).argmax(axis=1) == test.y).mean()

  mean = accuracy('mean')
  # Three of ten clients take back what three others do.
  assert mean < 0.4
  assert accuracy('median') > mean + 0.15
  assert accuracy('krum') > mean + 0.15
