"""StoCFL, and clusters of clients by what describes them at one fixed model."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.anchored_clusters import (
  AnchoredClusters,
  with_new_clients,
)
from fesem_jax.algorithms.common.similar_clusters import components
from fesem_jax.core import tree
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  over_seeds,
  run,
)


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('stocfl', local, stocfl_tau=0.75)


@over_seeds(2)
def test_finds_planted_clusters_without_their_number(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  # The first cohort has three of four clients of two groups, and none of the others.
  drawn = np.array([[1, 3, 5, 7, 9, 11], [0, 2, 4, 6, 8, 10], [12, 13, 14, 15, 0, 1]])
  cohorts = [Cohort(ids.astype(np.int32), everyone=False) for ids in drawn]

  def cohort_of(number):
    return cohorts[(number - 1) % 3]

  state, _ = run(planted(), data, rounds=4, cohort=cohort_of, seed=seed)
  own = np.asarray(state.clusters.assignment)
  assert adjusted_rand_score(groups, own) == 1.0
  # After the first round, who has yet to take part deploys what is most similar.
  state, _ = run(planted(), data, rounds=1, cohort=cohort_of, seed=seed)
  used = np.asarray(jax.jit(planted().deployed)(state, data).choice)
  order = np.random.default_rng(seed).permutation(16)
  unseen = jax.jit(planted().unseen_models)(state, data.reorder(order, num_clients=16))
  np.testing.assert_array_equal(unseen.choice, used[order])
  here = np.isin(groups, groups[1::2])
  assert adjusted_rand_score(groups[here], used[here]) == 1.0
  assert (used[~here] == 16).all()  # The global model.
  # Who has taken part stays in its cluster, be another one as similar as it may.
  joined = np.asarray(state.clusters.joined)
  moved = state.clusters._replace(assignment=jnp.where(joined, 5, 16))
  used = jax.jit(planted().deployed)(state._replace(clusters=moved), data).choice
  assert (np.asarray(used)[joined] == 5).all()


def test_one_example_is_enough_to_join_or_to_be_compared():
  # With tau -1 all are one cluster; client 2, which is late, deploys its model.
  data, local = helpers.federation([4, 1, 1, 0]), helpers.local(hidden=())
  algorithm = algorithms.build('stocfl', local, stocfl_tau=-1.0)
  cohort = Cohort(np.array([0, 1, 3], np.int32), everyone=False)
  step = jax.jit(algorithm.step)
  state, _ = step(initial(algorithm, data), data, cohort, jax.random.key(1))
  assert state.clusters.joined.tolist() == [True, True, False, False]
  used = jax.jit(algorithm.deployed)(state, data).choice
  assert used[:3].tolist() == [0, 0, 0]


def test_every_client_may_be_a_cluster_of_its_own():
  data = federation()
  algorithm = algorithms.build('stocfl', helpers.local(hidden=()), stocfl_tau=0.9999)
  state, _ = run(algorithm, data, rounds=2)
  models = matrix(state.centers)  # And the model of no cluster.
  assert len(np.unique(models, axis=0)) == len(models) == data.num_clients + 1
  assert_close(models[-1], matrix(tree.expand(state.params))[0], rtol=1e-6)


def test_a_chain_of_similar_clusters_is_one_component():
  order = np.array([4, 0, 5, 2, 1, 3])
  linked = np.zeros((8, 8), bool)
  linked[order[:-1], order[1:]] = linked[order[1:], order[:-1]] = True
  result = components(jnp.asarray(linked))
  assert result.tolist() == [0] * 6 + [6, 7]


# Clusters of clients by what describes them at one fixed model, by hand.


ANCHOR, KEY = {'w': jnp.array([[7.0, 7.0]])}, jax.random.key(0)


class Described(NamedTuple):
  """A rule by which clients are described as given."""

  described: Any
  seen: list[Any]
  threshold: float = 0.5
  local: LocalTraining = helpers.local()

  def describe(self, anchor, data, cohort, key):
    """What is given, whoever asks."""
    self.seen.append(anchor)
    return {'w': jnp.array(self.described)}


def test_clients_without_a_direction_join_another_time():
  # Client 0 is described by 0, client 3 by numbers whose squares are infinite.
  rule = Described([[1.0, 0.0], [0.0, 0.0], [3e19, 3e19]], [])
  none = AnchoredClusters(
    jnp.full(4, 3, jnp.int32), jnp.zeros(4, bool), {'w': jnp.zeros((4, 2))}, ANCHOR,
    jnp.zeros(3, jnp.int32),
  )  # fmt: skip
  data, cohort = helpers.federation([4] * 4), Cohort(np.array([2, 0, 3]), False)
  result, fresh = with_new_clients(rule, none, data, cohort, jnp.ones(3, bool), KEY)
  assert result.joined.tolist() == [False, False, True, False]
  assert result.assignment.tolist() == [3, 3, 0, 3]
  assert result.gradients['w'].tolist() == [[0, 0], [0, 0], [1, 0], [0, 0]]
  assert result.sizes.tolist() == [1, 0, 0]
  assert fresh.tolist() == [True, False, False]
  # Later a second client of nearly the same direction.
  later = rule._replace(described=[[9.0, 0.0], [2.0, 1.0], [0.0, 0.0]])
  result, fresh = with_new_clients(
    later, result, data, cohort, jnp.array([False, True, True]), KEY
  )
  assert result.joined.tolist() == [True, False, True, False]
  assert result.assignment.tolist() == [0, 3, 0, 3]
  assert result.gradients['w'].tolist() == [[2, 1], [0, 0], [1, 0], [0, 0]]
  assert result.sizes.tolist() == [2, 0, 0]
  assert fresh.tolist() == [False, False, False]
