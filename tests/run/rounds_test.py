"""A round and the loop of rounds: keys, memory, host decisions, when a run stops."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, ClientModels, Clusters, RoundInfo
from fesem_jax.run import programs
from tests.support import helpers
from tests.support.runs import simulate


class State(NamedTuple):
  models: dict
  round: jax.Array


def scripted(local, objectives, moves=()):
  """A method that trains nothing and reports Eq. 6 as it is told, from round 1 on."""
  objectives = jnp.asarray(objectives, jnp.float32)
  moved = jnp.zeros(len(objectives), jnp.int32).at[jnp.array(moves, int)].set(1)

  def init(key, data):
    del data
    return State(jax.vmap(local.model.init)(key[None]), jnp.int32(0))

  def step(state, data, cohort, key):
    del cohort, key
    nobody = jnp.zeros(data.num_clients, jnp.int32)
    clusters = Clusters(
      nobody, jnp.array([4]), moved[state.round], objectives[state.round]
    )
    count = jnp.int32(4)
    info = RoundInfo(jnp.float32(1.0), jnp.int32(0), count, count, clusters)
    return State(state.models, state.round + 1), info

  def deployed(state, data):
    return ClientModels(state.models, jnp.zeros(data.num_clients, jnp.int32))

  return Algorithm(local, init, step, deployed)


def rounds_run(objectives, patience, **options):
  data, local = helpers.federation([4] * 4), helpers.local()
  algorithm = scripted(local, objectives, **options)
  asked = {'rounds': len(objectives), 'patience': patience, 'eval_every': 0}
  result = simulate(algorithm, data, data, **asked)
  return result.summary['rounds']


@pytest.mark.parametrize(('changes', 'moves', 'rounds'), [
    # Falls by 5 %, then by 0.05 %: the second such round in a row is the last.
    ([0.05] * 4 + [5e-4] * 5, [], 7),
    # By 0.2 % is too much.
    ([2e-3] * 9, [], 10),
    # It rises as much as it falls: only the size of a change counts.
    ([0.05, -0.05] * 3 + [5e-4] * 2 + [0.05], [], 9),
    # A client moved in round 8, which is number 7 from 0.
    ([0.05] * 4 + [5e-4] * 5, [6], 9),
])  # fmt: skip
def test_a_run_stops_when_equation_6_and_all_clients_stood_still(
  changes, moves, rounds
):
  objectives = np.cumprod([1.0, *(1 - np.array(changes))])
  assert rounds_run(objectives, 2, moves=moves) == rounds


def test_a_round_takes_over_the_memory_of_the_state(monkeypatch):
  made, compiled = {}, programs.compiled

  def watched(what, *args, **options):
    made[what] = compiled(what, *args, **options), args[2]
    return made[what][0]

  monkeypatch.setattr(programs, 'compiled', watched)
  assert rounds_run([1.0, 0.9], 0) == 2
  program, state = made['a round']
  count = len(jax.tree.leaves(state))
  assert helpers.num_aliased(program.compiled) == count


class Numbers(NamedTuple):
  """A state that is split over devices: the key's numbers, and calls of `between`."""

  drawn: jax.Array
  decided: jax.Array


def counting(mesh, between=None):
  """A method whose round notes what it is given."""
  local = helpers.local(devices=2, hidden=())

  def init(key, data):
    del key
    return Numbers(
      sharding.split_clients(jnp.zeros(data.num_clients), mesh), jnp.int32(0)
    )

  def step(state, data, cohort, key):
    drawn = jax.random.uniform(key, (data.num_clients,)) + cohort.ids.sum()
    info = RoundInfo(drawn.sum(), jnp.int32(0), *[jnp.int32(4)] * 2)
    return state._replace(drawn=drawn), info

  def deployed(state, data):
    del state, data
    return ClientModels(jax.vmap(local.model.init)(jax.random.key(0)[None]))

  return Algorithm(local, init, step, deployed, between)


def run_on_two_devices(between=None, rounds=2):
  """The states after each round of a run with seed 7, and its records."""
  algorithm, data = (
    counting(sharding.client_mesh(2), between),
    helpers.federation([4] * 4),
  )
  states, seen = [], []

  class Watch(fj.Callback):
    def on_round(self, event):
      states.append(jax.device_get(event.state))
      seen.append(jax.tree.map(lambda x: x.sharding, event.state))

  options = {'rounds': rounds, 'seed': 7, 'eval_every': 0}
  result = simulate(algorithm, data, data, callbacks=[Watch()], **options)
  assert all(s == seen[0] for s in seen)
  return states, result.history


def test_a_round_has_the_key_of_its_number():
  states, history = run_on_two_devices()
  run_key = jax.random.fold_in(jax.random.key(7), prng_streams.ROUNDS)
  for number, state in enumerate(states, 1):
    drawn = jax.random.uniform(jax.random.fold_in(run_key, number), (8,))
    np.testing.assert_array_equal(state.drawn, drawn + sum(range(8)))
    np.testing.assert_allclose(history[number - 1]['train_loss'], state.drawn.sum())


def test_what_is_decided_on_the_host_goes_back_to_the_devices():
  def between(state, info):
    host = jax.device_get(state)
    assert isinstance(host.drawn, np.ndarray)
    return Numbers(host.drawn + 1, host.decided + 1), info._replace(failed=9)

  plain, _ = run_on_two_devices()
  states, history = run_on_two_devices(between)
  assert [record['failed'] for record in history] == [9, 9]
  assert [int(state.decided) for state in states] == [1, 2]
  np.testing.assert_array_equal(states[0].drawn, plain[0].drawn + 1)
