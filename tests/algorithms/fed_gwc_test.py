"""FedGWC finds clients whose losses differ from those of the others."""

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.server import spectral_splits
from tests.support import helpers
from tests.support.methods import run

GROUPS = np.arange(24) % 3 == 0


@pytest.mark.parametrize('parts', [1, 2])
def test_best_parts_are_those_of_blocks(parts):
  """One part, where all are equally similar; else the blocks."""
  truth = np.arange(24) % parts
  noise = np.random.default_rng(0).uniform(0, 0.05, (24, 24))
  similarity = np.where(truth[:, None] == truth, 0.9, 0.2) + noise + noise.T
  result = spectral_splits.best_parts(similarity, 4)
  assert adjusted_rand_score(truth, result) == 1.0


def test_clients_with_random_labels_are_a_cluster():
  data = helpers.federation([100] * 24)
  labels, offsets = np.array(data.y), np.asarray(data.offsets)
  rng = np.random.default_rng(1)
  for i in np.flatnonzero(GROUPS):
    rows = slice(offsets[i], offsets[i + 1])
    labels[rows] = rng.permutation(labels[rows])
  data = dataclasses.replace(data, y=labels)
  local = helpers.local(batch_size=10, epochs=4, rate=0.3, hidden=())
  method = algorithms.build('fed_gwc', local, min_size=12, gwc_gamma=1.0)
  state, infos = run(method, data)
  assert adjusted_rand_score(GROUPS, state.assignment) == 1.0
  assert np.sort(infos[-1].clusters.sizes)[-2:].tolist() == [8, 16]
