"""What wrappers hand on to the method within, which here only takes notes."""

import dataclasses
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.algorithms.common import wrapped
from fesem_jax.algorithms.wrappers import (
  absent_clients,
  loss_checks,
  reclustering,
  shuffled_start,
)
from fesem_jax.algorithms.wrappers.absent_clients import with_late_joins, with_max_age
from fesem_jax.algorithms.wrappers.loss_checks import with_loss_checks
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
# Client 3 is in no round here; the others are best off in these clusters.
BEST = jnp.array([1, 1, 0, 1])
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

  def init(key, data, cohort=None):
    seen.append(('init', cohort))
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


def by_table(local, centers, own, by_loss, data, cohort):
  """Clients who choose by loss choose those in `BEST`."""
  del local, centers, data
  return jnp.where(by_loss, BEST[jnp.asarray(cohort.ids)], own)


@pytest.fixture(autouse=True)
def losses(monkeypatch):
  """Clients' losses are known."""
  for module in (absent_clients, loss_checks):
    monkeypatch.setattr(module, 'start_by_loss', by_table)
  monkeypatch.setattr(absent_clients, 'least_loss', lambda *args: BEST)


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


WRAPPED = {
  'max_age': lambda method: with_max_age(method, 2),
  'late_joins': lambda method: with_late_joins(method, 3),
  'loss_checks': lambda method: with_loss_checks(method, 3),
  'reclustering': lambda method: with_reclustering(method, 9),
  'reseeding': with_reseeding,
}


@pytest.mark.parametrize(
  'wrapper', [lambda m: with_max_age(m, 1), lambda m: with_loss_checks(m, 3)]
)
def test_a_client_that_does_not_count_keeps_the_cluster_it_had(wrapper):
  # All in the round start from `BEST`, where the method leaves them.
  method = wrapper(noting([]))
  state = wrapped.replaced(method.init(KEY, DATA), rounds=jnp.int32(2))
  after, info = method.step(state, DATA, COHORT, KEY)
  want = OWN.at[jnp.array([1, 2])].set(BEST[jnp.array([1, 2])])  # Client 0 dropped out.
  np.testing.assert_array_equal(wrapped.inner(after).assignment, want)
  np.testing.assert_array_equal(info.clusters.assignment, want)
  np.testing.assert_array_equal(info.clusters.sizes, np.bincount(want))
  assert int(info.clusters.moved) == (want != OWN).sum() == 1


@pytest.mark.parametrize('name', [n for n in WRAPPED if n != 'reclustering'])
def test_whether_clients_keep_their_clusters_is_handed_on(name):
  seen = []
  method = WRAPPED[name](noting(seen))
  state = state_of(method, seen)
  for hold in (jnp.bool_(True), None):
    method.step(state, DATA, dataclasses.replace(COHORT, keep_clusters=hold), KEY)
    assert seen[-1 if name != 'reseeding' else -2][1][1] is hold


@pytest.mark.parametrize(
  ('name', 'seen_in', 'choose'),
  [
    # Of clients 2, 0 and 1; in the third round with at most two rounds of absence.
    ('max_age', {'seen': jnp.array([0, 2, 0, 0])}, [True, True, False]),
    ('max_age', {'seen': jnp.array([1, 1, 0, 0])}, [True, False, False]),
    ('late_joins', {'joined': jnp.array([False, True, True, False])}, [0, 1, 0]),
  ],
)
def test_training_alone_starts_where_the_round_does(name, seen_in, choose):
  seen = []
  method = WRAPPED[name](noting(seen))
  state = state_of(method, seen)._replace(**seen_in)
  state = wrapped.replaced(state, rounds=jnp.int32(2))
  want = np.where(np.array(choose, bool), BEST[IDS], OWN[IDS])
  assert method.train(LOCAL, state, DATA, COHORT, KEY, 'reduction') == 'trained'
  _, (within, starts, reduction) = seen[-1]
  assert within.centers is state.method.centers
  assert reduction == 'reduction'
  np.testing.assert_array_equal(starts, want)
  method.step(state, DATA, COHORT, KEY)
  np.testing.assert_array_equal(seen[-1][1][0], want)


def test_training_alone_starts_by_loss_in_rounds_that_check_losses():
  seen = []
  method = with_loss_checks(noting(seen), 3)
  for done, want in ((1, OWN[IDS]), (2, BEST[IDS]), (3, OWN[IDS]), (5, BEST[IDS])):
    state = method.init(KEY, DATA)._replace(rounds=jnp.int32(done))
    assert method.train(LOCAL, state, DATA, COHORT, KEY, None) == 'trained'
    np.testing.assert_array_equal(seen[-1][1][1], want)
    for hold, starts in ((True, OWN[IDS]), (False, want)):
      cohort = dataclasses.replace(COHORT, keep_clusters=jnp.bool_(hold))
      method.step(state, DATA, cohort, KEY)
      np.testing.assert_array_equal(seen[-1][1][0], starts)


def test_ages_count_from_the_round_in_which_a_client_last_took_part():
  seen = []
  method = with_max_age(noting(seen), 2)
  state = state_of(method, seen)
  assert state.seen.tolist() == [0] * 4
  state, _ = method.step(state, DATA, COHORT, KEY)
  assert state.seen.tolist() == [0, 1, 1, 0]  # Client 0 dropped out.
  state, _ = method.step(state, DATA, COHORT, KEY)
  assert state.seen.tolist() == [0, 2, 2, 0]
  assert state.seen.dtype == jnp.int32


def test_clients_join_where_they_take_part_and_deploy_the_best_center_until_then():
  seen = []
  method = with_late_joins(noting(seen), 3)
  state = state_of(method, seen)._replace(joined=jnp.array([False] * 3 + [True]))
  used = method.deployed(state, DATA).choice
  np.testing.assert_array_equal(used, [*BEST[:3], OWN[3]])
  state, _ = method.step(state, DATA, COHORT, KEY)
  assert state.joined.tolist() == [False, True, True, True]
  # The method leaves them in the clusters that they started from.
  used = method.deployed(state, DATA).choice
  np.testing.assert_array_equal(used, [*BEST[:3], OWN[3]])


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
  given = wrapped.starting_from(state, COHORT, jnp.array([0, 1, 0]))
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
  state, step = absent_clients.AgesState(own, jnp.zeros(4)), object()
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


def test_a_shuffled_start_counts_clients_with_examples_in_its_means(monkeypatch):
  shuffled = jnp.array([1, 0, 0, 1])
  monkeypatch.setattr(shuffled_start, 'shuffled', lambda *args: shuffled)
  method = shuffled_start.with_shuffled_start(noting([]), 1.0)
  data = helpers.federation([1, 4, 4]).reorder(np.arange(3), num_clients=4)
  state = method.init(KEY, data)
  np.testing.assert_array_equal(state.assignment, shuffled)
  # Of models 1, 2 and 3; the fourth client has no examples.
  np.testing.assert_allclose(state.centers['w'], [[2.5], [1.0]])


def test_a_shuffled_start_leaves_alone_who_has_yet_to_join(monkeypatch):
  seen = []
  monkeypatch.setattr(shuffled_start, 'shuffled', lambda *args: 1 - args[3])
  inner = noting(seen)

  def init(key, data, cohort=None):  # Client 3 is in neither cluster.
    state = inner.init(key, data, cohort)
    return state._replace(assignment=jnp.array([0, 1, 1, 2]))

  method = shuffled_start.with_shuffled_start(inner._replace(init=init), 1.0)
  state = method.init(KEY, DATA, COHORT)
  assert seen[-1] == ('init', COHORT)
  assert state.assignment.tolist() == [1, 0, 0, 2]
  np.testing.assert_allclose(state.centers['w'], [[2.5], [1.0]])
