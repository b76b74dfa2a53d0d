"""What wrappers hand on to the method within, which here only takes notes."""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.algorithms.common import wrapped
from fesem_jax.algorithms.wrappers import reclustering
from fesem_jax.algorithms.wrappers.reclustering import with_reclustering
from fesem_jax.algorithms.wrappers.reseeding import with_reseeding
from fesem_jax.core.algorithm import Algorithm, ClientModels, Clusters, RoundInfo
from fesem_jax.core.types import Cohort
from tests.support import helpers

DATA = helpers.federation([4, 4, 4, 4])
LOCAL = helpers.local(hidden=())
KEY = jax.random.key(0)
IDS = np.array([2, 0, 1], np.int32)
COHORT = Cohort(IDS, everyone=False)
# Client 3 is in no round here.
OWN = jnp.array([0, 1, 1, 0])
HERE = jnp.array([True, False, True])  # Client 0 dropped out.
TRAINED = helpers.trained(
  {'w': jnp.array([[33.0], [31.0], [32.0]])}, [4] * 3,
  ids=jnp.asarray(IDS), loss=jnp.ones(3), arrived=HERE, steps=jnp.full(3, 2),
)  # fmt: skip


class Notes(NamedTuple):
  """State of a method that trains no client: two centers of one number."""

  centers: Any
  assignment: jax.Array
  client_params: Any
  rounds: jax.Array


def noting(seen, after=None, parts=None):
  """A method that notes what it is called with.

  Args:
    seen: to which (function, arguments) are added.
    after: assignment [M] after a round; None leaves it.
    parts: of Eq. 6, which a round reports.
  """

  def init(key, data):
    models = {'w': jnp.array([[1.0], [2.0], [3.0], [8.0]])}
    return Notes({'w': jnp.array([[0.0], [5.0]])}, OWN, models, jnp.int32(0))

  def step(state, data, cohort, key):
    own = state.assignment[jnp.asarray(cohort.ids)]
    seen.append(('step', (own, cohort.keep_clusters)))
    new = state.assignment if after is None else after
    clusters = Clusters(
      assignment=new, sizes=jnp.bincount(new, length=2), moved=jnp.int32(0),
      objective=jnp.float32(7), objective_parts=parts, took_part=HERE,
    )  # fmt: skip
    after_it = state._replace(assignment=new, rounds=state.rounds + 1)
    return after_it, TRAINED.info(clusters)

  def deployed(state, data):
    return ClientModels(state.centers, state.assignment)

  def train(local, state, data, cohort, key, reduction):
    own = state.assignment[jnp.asarray(cohort.ids)]
    seen.append(('train', (state, own, reduction)))
    return 'trained'

  def between(state, info):
    return state._replace(rounds=state.rounds + 10), info._replace(updates='decided')

  def with_centers(state, centers, stays):
    seen.append(('with_centers', stays))
    return state._replace(centers=centers)

  return Algorithm(
    LOCAL, init, step, deployed, between=between, train=train, with_centers=with_centers
  )


FOUND = reclustering.Reclustered(
  centers={'w': jnp.array([[10.0], [20.0]])},
  stays=jnp.array([True, False]),
  assignment=jnp.array([0, 1, 0]),
  trained=TRAINED,
  objective=jnp.float32(3),
  changed=jnp.bool_(True),
)


@pytest.fixture(autouse=True)
def checks(monkeypatch):
  """All checks of clusters find the same."""
  monkeypatch.setattr(reclustering, 'recluster', lambda *args: FOUND)


def state_of(method, seen):
  state = method.init(KEY, DATA)
  seen.clear()
  return state


def test_after_new_clusters_one_round_keeps_them():
  seen = []
  method = with_reclustering(noting(seen), 9)
  state = state_of(method, seen)
  assert (int(state.checks.due), int(state.checks.wait)) == (9, 9)
  assert not state.checks.hold
  held = state._replace(checks=state.checks._replace(hold=jnp.bool_(True)))
  after, _ = method.step(held, DATA, COHORT, KEY)
  # As it is traced: the round's own value, not the one that is given.
  assert all(of[1] is not None for function, of in seen if function == 'step')
  assert not after.checks.hold
  assert (int(after.checks.due), int(after.checks.wait)) == (9, 9)
  assert int(after.method.rounds) == 1


@pytest.mark.parametrize('parts', [None, (jnp.float32(1), jnp.float32(2))])
def test_a_check_takes_the_place_of_a_round(parts):
  seen = []
  method = with_reclustering(noting(seen, parts=parts), 3)
  state = wrapped.replaced(state_of(method, seen), rounds=jnp.int32(2))
  after, info = method.step(state, DATA, COHORT, KEY)
  within = after.method
  # Client 0 dropped out and stays; client 3 is not in the round.
  assert within.assignment.tolist() == [0, 0, 0, 0]
  np.testing.assert_array_equal(within.client_params['w'][:, 0], [31, 32, 33, 8])
  np.testing.assert_array_equal(within.centers['w'], FOUND.centers['w'])
  assert int(within.rounds) == 3
  assert (int(after.checks.due), int(after.checks.wait)) == (6, 3)
  assert after.checks.hold
  report = info.clusters
  assert (report.sizes.tolist(), int(report.moved)) == ([4, 0], 2)
  assert float(report.objective) == 3
  assert (int(info.trained), int(info.steps)) == (2, 6)
  # There are no steps between a check's start and end.
  assert report.objective_parts == (None if parts is None else (3, 3))


def test_a_check_goes_by_the_clusters_that_clients_would_start_from(monkeypatch):
  def all_change(*args):
    return FOUND._replace(assignment=1 - args[3])

  monkeypatch.setattr(reclustering, 'recluster', all_change)
  seen = []
  method = with_reclustering(noting(seen), 3)
  state = wrapped.replaced(state_of(method, seen), rounds=jnp.int32(2))
  after, _ = method.step(state, DATA, COHORT, KEY)
  assert after.method.assignment.tolist() == [0, 0, 0, 0]
  given = wrapped.replaced(state, assignment=jnp.array([1, 0, 0, 0]))
  after, _ = method.step(given, DATA, COHORT, KEY)
  assert after.method.assignment.tolist() == [1, 1, 1, 0]


def test_rounds_without_clients_neither_check_clusters_nor_part_them(monkeypatch):
  absent = TRAINED._replace(arrived=jnp.zeros(3, bool))
  found = FOUND._replace(trained=absent, changed=jnp.bool_(False))
  monkeypatch.setattr(reclustering, 'recluster', lambda *args: found)
  monkeypatch.setattr(sys.modules[__name__], 'TRAINED', absent)
  method = with_reclustering(noting([]), 3)
  state = wrapped.replaced(state_of(method, []), rounds=jnp.int32(2))
  after, _ = method.step(state, DATA, COHORT, KEY)
  assert (int(after.checks.due), int(after.checks.wait)) == (4, 3)
  holds = reclustering.Checks(jnp.int32(9), jnp.int32(3), jnp.bool_(True))
  holding = state._replace(checks=holds)
  after, _ = method.step(holding, DATA, COHORT, KEY)
  assert after.checks.hold


def test_checks_come_later_and_later_until_clusters_change():
  checks = reclustering.Checks.first(3)
  for changed, want in ((False, (9, 6)), (False, (21, 12)), (True, (24, 3))):
    checks = checks.after(jnp.bool_(changed), 3)
    assert (int(checks.due), int(checks.wait)) == want
    assert bool(checks.hold) == changed


def test_a_wrapped_method_keeps_its_other_functions():
  seen = []
  method = noting(seen)
  own = method.init(KEY, DATA)
  state, step = reclustering.ReclusteringState(own, None), object()
  made = wrapped.wrap(method, step)
  assert made.step is step
  assert made.deployed(state, DATA).choice is own.assignment
  moved = made.with_centers(state, {'w': jnp.ones((2, 1))}, 'stays')
  assert seen[-1] == ('with_centers', 'stays')
  np.testing.assert_array_equal(moved.method.centers['w'], 1)
  after, info = made.between(state, RoundInfo(*[jnp.int32(0)] * 4))
  assert (int(after.method.rounds), info.updates) == (10, 'decided')
  assert made.train(LOCAL, state, DATA, COHORT, KEY, None) == 'trained'
  assert seen[-1][1][0] is own
  none = wrapped.wrap(method._replace(train=None, between=None), step)
  assert none.train is none.between is None
  assert wrapped.wrap(method, step, deployed='own').deployed == 'own'


def test_a_center_that_moved_to_a_client_begins_anew_and_the_report_counts_it():
  seen = []
  # Cluster 0 has no client left; client 3, in no round, is the farthest from cluster 1.
  method = with_reseeding(noting(seen, after=jnp.array([1, 1, 1, 1])))
  state = state_of(method, seen)
  state, info = method.step(state, DATA, COHORT, KEY)
  # Client 1 is 3 from its center and client 2 is 2; client 0 dropped out.
  assert state.assignment.tolist() == [1, 0, 1, 1]
  np.testing.assert_array_equal(state.centers['w'], [[2.0], [5.0]])
  stays = seen[-1][1]
  assert stays.tolist() == [False, True]
  # Before the round clients 0 and 3 were in cluster 0, and client 1 in cluster 1.
  assert info.clusters.assignment.tolist() == [1, 0, 1, 1]
  assert info.clusters.sizes.tolist() == [1, 3]
  assert int(info.clusters.moved) == 3
  assert float(info.clusters.objective) == 7


def test_reseeding_counts_clients_with_examples_alone():
  seen = []
  data = helpers.federation([1, 4, 4]).reorder(np.arange(3), num_clients=4)
  method = with_reseeding(noting(seen, after=jnp.array([1, 1, 1, 1])))
  state = method.init(KEY, data)
  # Client 3 would have moved from 0 to 1; client 0 has, of one example.
  _, info = method.step(state, data, COHORT, KEY)
  assert int(info.clusters.moved) == 2
  assert info.clusters.sizes.tolist() == [1, 2]
