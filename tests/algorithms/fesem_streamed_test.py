"""FeSEM without a stack of clients' models."""

import jax
import numpy as np
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core import sharding
from tests.support import helpers, reference
from tests.support.methods import SIZES, assert_close, federation, initial, matrix, run


def test_streamed_clients_give_what_stacked_ones_do():
  local = helpers.local(chunk=2, devices=2)
  options = {'weighting': 'by_examples', 'cluster_on': 'logits', 'init_clients': 3}
  data = sharding.replicate(federation(), local.mesh)
  results = {}
  for state in ('stacked', 'streamed'):
    algorithm = algorithms.build(
      'fesem', local, num_clusters=2, client_state=state, **options
    )
    results[state] = run(algorithm, data)
  (stacked, infos), (streamed, others) = results['stacked'], results['streamed']
  assert streamed.client_params is None
  assert jax.tree.leaves(stacked.client_params)[0].shape[0] == len(SIZES)
  np.testing.assert_array_equal(stacked.assignment, streamed.assignment)
  assert_close(matrix(stacked.centers), matrix(streamed.centers), rtol=1e-6, atol=1e-7)
  for a, b in zip(infos, others, strict=True):
    assert_close(a.clusters.objective, b.clusters.objective, rtol=1e-5)


def test_more_clients_than_the_first_clustering_sees_go_to_its_centers():
  data = helpers.federation([40] * 40, groups=np.arange(40) % 2)
  local = helpers.local(chunk=8, batch_size=10, rate=0.5, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_clients=10, init_epochs=20
  )
  state = initial(algorithm, data)
  assert adjusted_rand_score(np.arange(40) % 2, state.assignment) == 1.0
  nearest = reference.nearest(matrix(state.client_params), matrix(state.centers))
  np.testing.assert_array_equal(nearest, state.assignment)
