"""Options of FeSEM beyond the paper: random starts, and those of checks."""

import sys

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import prng_streams, tree
from fesem_jax.data import attacks
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
)

KEY = jax.random.key(5)


def built(**options):
  local = helpers.local(epochs=2)
  return algorithms.build('fesem', local, num_clusters=2, **options), local


def test_random_models_are_each_clients_own():
  data, (algorithm, local) = federation(), built(init_models='random')
  state = initial(algorithm, data)
  key, points = jax.random.key(0), []
  for i in range(6):
    own = jax.random.fold_in(prng_streams.fold(key, prng_streams.MODEL), i)
    start = reference.from_params(tree.expand(local.model.init(own)), 0)
    once = local._replace(schedule=local.schedule._replace(epochs=1))
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
    points.append(reference.flat(*reference_round(once, data, [start], [i], train_key)))
  assert_close(reference.vectors(state.client_params), points, rtol=1e-3)


def test_bad_clients_lie_about_random_models_too():
  data, (algorithm, _) = federation(), built(init_models='random')
  honest = matrix(initial(algorithm, data).client_params)
  bad = attacks.apply(data, 'sign_flip', 0.5)
  sent = matrix(initial(algorithm, bad).client_params)
  lied = (honest != sent).any(axis=1)
  np.testing.assert_array_equal(lied, bad.attack.bad)


@pytest.mark.nightly
def test_a_sampled_start_matches_units_before_models_are_aggregated():
  data = helpers.federation([6] * 12)
  local = helpers.local(rate=1e-3)
  centers = []
  for aggregation in ('mean', 'trimmed_mean'):
    algorithm = algorithms.build(
      'fesem_ma', local, num_clusters=1, init_models='random', init_clients=6,
      aggregation=aggregation,
    )  # fmt: skip
    centers.append(matrix(initial(algorithm, data).centers))
  # Without matching, 1.75; the trimmed mean itself differs by 0.01.
  assert np.square(centers[0] - centers[1]).sum() < 0.1


def test_checks_get_the_options_of_the_first_clustering(monkeypatch):
  seen, module = [], sys.modules['fesem_jax.algorithms.flat_options']

  def wrap(method, every, clustering):
    seen.append((every, clustering))
    return method

  monkeypatch.setattr(module, 'with_reclustering', wrap)
  built(
    recluster_every=3, init_restarts=7, cluster_on='logits', weighting='by_examples'
  )
  algorithms.build(
    'hypo_cluster', helpers.local(), recluster_every=2, weighting='by_examples'
  )
  (every, fesem), (_, hypo) = seen
  assert (every, fesem.restarts) == (3, 7)
  assert fesem.comparison.partial
  assert not hypo.comparison.partial
  assert fesem.weighting == hypo.weighting == 'by_examples'
