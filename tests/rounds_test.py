"""The round loop: when it stops by itself, and that it donates the state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.base import Algorithm, Clusters, Deployed, RoundInfo
from fesem_jax.programs import Programs
from fesem_jax.simulate import simulate
from tests import helpers


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

  return Algorithm(init, step, lambda state, *_: Deployed(state.models, jnp.int32(0)))


def rounds_run(objectives, patience, programs=None, **options):
  data, local = helpers.federation([4] * 4), helpers.local()
  algorithm = scripted(local, objectives, **options)
  result = simulate(
      algorithm, local, data, data, rounds=len(objectives), patience=patience,
      eval_every=0, finetune_epochs=0, make_portrait=False, programs=programs,
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
  assert helpers.num_aliased(program) == count
