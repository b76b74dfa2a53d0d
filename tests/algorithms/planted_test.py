"""Clustered methods find the clusters that were planted."""

import functools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.methods import over_seeds, run

TWO, FOUR = np.arange(20) % 2, np.arange(16) % 4
# Method, options, true groups, rounds.
METHODS = [
  ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 50, 'init_rounds': 2}, TWO, 15),
  ('robust', {'num_clusters': 2, 'init_epochs': 5}, TWO, 3),
  ('fed_cluster', {'min_size': 10, 'eps1': 0.6, 'eps2': 0.3, 'gamma': 0.4}, TWO, 20),
  ('fed_em', {'num_clusters': 2}, TWO, 40),
  ('fed_rc', {'num_clusters': 2}, TWO, 40),
  ('fed_few', {'num_clusters': 2}, TWO, 15),
  ('fesem', {'num_clusters': 4, 'init_epochs': 3}, FOUR, 5),
  ('cfl_gp', {'num_clusters': 4}, FOUR, 5),
  ('clove', {'num_clusters': 4}, FOUR, 8),
  # Without their number. Four groups are found from some random models only: one that
  # two groups share fits both, and the score of their clusters is no tenth larger.
  ('clove', {'num_clusters': 6, 'choose_num_clusters': True}, TWO, 8),
  ('fed_drift', {'check_every': 3}, FOUR, 10),
]
# By night: their starts and rounds have float64 references in `make test`.
BY_NIGHT = {'fed_cluster', 'fed_em', 'fed_rc', 'cfl_gp', 'fed_drift'}


@functools.lru_cache(maxsize=2)
def built(index):
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build(*METHODS[index][:1], local, **METHODS[index][1])


@pytest.mark.parametrize(
  'index',
  [
    pytest.param(i, id=name, marks=[pytest.mark.nightly] * (name in BY_NIGHT))
    for i, (name, *_) in enumerate(METHODS)
  ],
)
@over_seeds(3)
def test_clustered_methods_recover_planted_clusters(index, seed):
  name, _, groups, rounds = METHODS[index]
  data = helpers.federation([60] * len(groups), seed=seed, groups=groups)
  state, infos = run(built(index), data, rounds=rounds, seed=seed)
  result = built(index).deployed(state, data).clusters()
  assert adjusted_rand_score(groups, result) == 1.0
  if groups is FOUR:
    assert int(infos[-1].clusters.moved) == 0
    sizes = np.sort(infos[-1].clusters.sizes)
    assert (sizes[-4:].tolist(), sizes[:-4].sum()) == ([4] * 4, 0)
  if name != 'robust':
    assert infos[-1].train_loss < infos[0].train_loss
  if name == 'fed_drift':
    assert int((np.asarray(state.last_used) >= 0).sum()) == 4
