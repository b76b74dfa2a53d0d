"""The clustered methods find the four rotations of scikit-learn's digits."""

import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.data import load
from tests.support import draws, helpers
from tests.support.methods import run

METHODS = [
  ('fesem', {'num_clusters': 4, 'init_epochs': 3}, 2),
  ('hypo_cluster', {'num_clusters': 4}, 2),
  ('robust', {'num_clusters': 4, **draws.ONCE}, 1),
  (
    'fed_cluster',
    {'min_size': 4, 'min_rounds': 3, 'check_every': 2, 'eps1': 0.6, 'eps2': 0.1},
    8,
  ),
]


@pytest.fixture(scope='module')
def digits():
  train, _ = load('digits', partition='rotated', partition_groups=4, num_clients=16)
  return train


@pytest.mark.nightly
@pytest.mark.parametrize(('name', 'options', 'rounds'), METHODS)
def test_four_rotations_are_told_apart(name, options, rounds, digits):
  local = helpers.local(
    batch_size=50, epochs=2, rate=0.5, hidden=(), shape=(8, 8), classes=10, chunk=16
  )
  algorithm = algorithms.build(name, local, **options)
  state, infos = run(algorithm, digits, rounds=rounds)
  assert infos[-1].clusters.sizes.tolist()[:4] == [4, 4, 4, 4]
  assert adjusted_rand_score(digits.info.clusters, state.assignment) == 1
