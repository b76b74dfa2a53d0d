"""A round and the loop of rounds: keys, memory, host decisions, when a run stops."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, ClientModels, Clusters, RoundInfo
from fesem_jax.run import rounds
from fesem_jax.run.programs import Programs
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


def rounds_run(objectives, patience, programs=None, **options):
  data, local = helpers.federation([4] * 4), helpers.local()
  algorithm = scripted(local, objectives, **options)
  result = simulate(
    algorithm, data, data, rounds=len(objectives), patience=patience, eval_every=0,
    finetune_epochs=0, programs=programs,
  )  # fmt: skip
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


def test_a_round_takes_over_the_memory_of_the_state():
  kept = {}

  class Watched(Programs):
    def compiled(self, key, fn, *args, **options):
      program = super().compiled(key, fn, *args, **options)
      kept[key[0] if isinstance(key, tuple) else key] = program, args
      return program

  assert rounds_run([1.0, 0.9], 0, Watched()) == 2
  program, (state, *_) = kept['step']
  count = len(jax.tree.leaves(state))
  assert helpers.num_aliased(program.compiled) == count


class Numbers(NamedTuple):
  """A state that is split over devices: the key's numbers, and calls of `between`."""

  drawn: jax.Array
  decided: jax.Array


def counting(mesh, between=None):
  """A method whose round notes what it is given."""

  def init(key, data):
    del key
    return Numbers(
      sharding.split_clients(jnp.zeros(data.num_clients), mesh), jnp.int32(0)
    )

  def step(state, data, cohort, key):
    drawn = jax.random.uniform(key, (data.num_clients,)) + cohort.ids.sum()
    info = RoundInfo(drawn.sum(), jnp.int32(0), *[jnp.int32(4)] * 2)
    return state._replace(drawn=drawn), info

  return Algorithm(helpers.local(), init, step, lambda state, *_: None, between)


def on_two_devices(between=None):
  mesh = sharding.client_mesh(2)
  algorithm = counting(mesh, between)
  data = sharding.replicate(helpers.federation([4] * 4), mesh)
  keys = rounds.keys_of_run(7, mesh)
  state = jax.jit(algorithm.init)(keys[prng_streams.INIT], data)
  cohort = helpers.everyone(data)
  step = rounds.compile_step(
    Programs(), algorithm, state, data, cohort, keys[prng_streams.ROUNDS]
  )
  return algorithm, step, state, data, cohort, keys[prng_streams.ROUNDS]


@pytest.mark.parametrize('number', [1, 2, 5])
def test_a_round_has_the_key_of_its_number(number):
  algorithm, step, *rest = on_two_devices()
  state, info = rounds.run_round(algorithm, step, *rest, number)
  run_key = jax.random.fold_in(jax.random.key(7), prng_streams.ROUNDS)
  drawn = jax.random.uniform(jax.random.fold_in(run_key, number), (4,)) + 6
  np.testing.assert_array_equal(state.drawn, drawn)
  np.testing.assert_allclose(info.train_loss, drawn.sum())


def test_a_run_has_a_key_for_each_of_its_streams():
  mesh = sharding.client_mesh(2)
  keys = rounds.keys_of_run(3, mesh)
  names = (
    prng_streams.INIT,
    prng_streams.ROUNDS,
    prng_streams.FINETUNE,
    prng_streams.PORTRAIT,
  )
  assert set(keys) == set(names)
  for stream, key in keys.items():
    assert key == jax.random.fold_in(jax.random.key(3), stream)
    assert key.sharding.device_set == set(mesh.devices.flat)


def test_what_is_decided_on_the_host_goes_back_to_the_devices():
  def between(state, info):
    host = jax.device_get(state)
    assert isinstance(host.drawn, np.ndarray)
    return Numbers(host.drawn + 1, host.decided + 1), info._replace(failed=9)

  algorithm, step, state, *rest = on_two_devices(between)
  before = jax.tree.map(lambda x: x.sharding, state)
  plain, *_ = rounds.run_round(*on_two_devices(), 1)
  for number in (1, 2):  # A compiled step refuses a state of other shardings.
    state, info = rounds.run_round(algorithm, step, state, *rest, number)
    assert jax.tree.map(lambda x: x.sharding, state) == before
    assert info.failed == 9
    assert int(state.decided) == number
    if number == 1:
      np.testing.assert_array_equal(state.drawn, np.asarray(plain.drawn) + 1)


def test_a_step_that_was_only_jitted_can_be_driven_too():
  def add_one(state, info):
    return (state._replace(drawn=state.drawn + 1), info)

  algorithm, step, *rest = on_two_devices(add_one)
  state, info = rounds.run_round(algorithm, jax.jit(algorithm.step), *rest, 3)
  same_state, same_info = rounds.run_round(algorithm, step, *rest, 3)
  np.testing.assert_array_equal(state.drawn, same_state.drawn)
  np.testing.assert_allclose(info.train_loss, same_info.train_loss)
