"""Clusters by losses, where some of these are unknown or do not matter."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.sampling import coin
from fesem_jax.core.types import Cohort
from fesem_jax.training.client_losses import cohort_losses
from tests.support import helpers

KEY = jax.random.key(0)
CLOVE = importlib.import_module('fesem_jax.algorithms.clove')


def test_who_drops_out_or_has_losses_that_are_not_finite_gets_the_model_of_least_loss():
  data = helpers.federation([9, 5, 0, 7, 1], groups=[0, 1, 0, 1, 0], seed=1)
  local = helpers.local(hidden=())._replace(dropout_rate=0.4)
  models = helpers.first_models(local, 3)
  cohort = Cohort(np.array([3, 0, 1, 4, 2, 5], np.int32), everyone=False)
  find = jax.jit(
    lambda models, key: CLOVE.clusters_by_loss(local, models, data, cohort, key, False)
  )
  least = cohort_losses(local, models, data, cohort).argmin(axis=1)
  some = 0
  for seed in range(12):
    key = jax.random.key(seed)
    late = coin(key, data, cohort.ids, 0.4, prng_streams.DROPOUT)
    late = np.asarray(late | (data.sizes(cohort.ids) == 0))
    cluster = find(models, key)
    np.testing.assert_array_equal(cluster[late], least[late])
    # With no more of them than models, all others are clusters of one.
    if (~late).sum() <= 3:
      assert len(set(cluster[~late].tolist())) == (~late).sum()
      some += len(set(least[~late].tolist())) < (~late).sum()
  assert some > 0
  assert cluster.dtype == jnp.int32
  # One model has no finite loss, so that no client is in a cluster.
  bad = jax.tree.map(lambda x: x.at[least[0]].set(jnp.nan), models)
  want = cohort_losses(local, bad, data, cohort).argmin(axis=1)
  np.testing.assert_array_equal(find(bad, key)[:4], want[:4])


def test_there_are_as_many_clusters_as_models_unless_their_number_is_to_be_chosen():
  losses = jnp.array(
    [[1.0, 2.0, 9.0], [1.1, 2.1, 9.0], [1.0, 4.0, 9.0], [1.1, 4.3, 9.0]]
  )
  find = jax.jit(CLOVE.cluster_and_match)
  result = find(KEY, losses, jnp.ones(4, bool), jnp.arange(4))
  assert set(result.tolist()) == {0, 1, 2}


def test_random_clusters_are_of_all_models():
  data = helpers.federation([1, 2, 0, 1, 3, 1, 2, 1])
  some = Cohort(np.array([6, 2, 0, 5, 8, 3], np.int32), everyone=False)
  draw = jax.jit(lambda key: CLOVE.clusters_at_random(3, data, some, key))
  for seed in range(12):
    cluster = draw(jax.random.key(seed))
    assert cluster.dtype == jnp.int32
    assert set(cluster[jnp.array([0, 2, 3, 5])].tolist()) == {0, 1, 2}
  # With fewer clients than models, each has one of its own.
  few = CLOVE.clusters_at_random(9, data, some, KEY)
  assert len(set(few.tolist())) == 6


def test_chosen_numbers_of_clusters_are_at_most_those_of_models(monkeypatch):
  asked = []

  def best_number(losses, exists, ids, most):
    asked.append(most)
    return jnp.array([0, 1, 1])

  monkeypatch.setattr(CLOVE, 'clusters_of_best_number', best_number)
  losses = jnp.array([[9.0, 1.0], [2.0, 3.0], [2.0, 3.0]])
  find = CLOVE.cluster_and_match
  result = find(KEY, losses, jnp.ones(3, bool), jnp.arange(3), choose_number=True)
  assert asked == [2]
  assert result.tolist() == [1, 0, 0]
