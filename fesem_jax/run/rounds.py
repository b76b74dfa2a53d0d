"""A round of any algorithm: its keys, its program, and the one way to run it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.run.programs import Program, Programs, run_once
from fesem_jax.run.state_placement import placed_state

# A `Program`, or the function itself.
Step = Callable[..., Any]


def keys_of_run(seed: int, mesh: Mesh) -> dict[int, jax.Array]:
  """The key of each random stream (`prng_streams`) of a run, whole on every device."""
  named = (
    prng_streams.INIT,
    prng_streams.ROUNDS,
    prng_streams.FINETUNE,
    prng_streams.PORTRAIT,
  )
  key = jax.random.key(seed)
  keys = {s: prng_streams.folded(key, s) for s in named}
  return sharding.replicate(keys, mesh)


def step_of(algorithm: Algorithm, clients: bool = False) -> Step:
  """A round of an algorithm, which tells of each client only where that is asked for.

  `clients` asks for `RoundInfo.clients`. What is not asked for is no part of the
  compiled program. Eq. 6 of sums that the server clips and noises would be that of
  other models, often 0; it is left out.
  """
  sends = algorithm.local.sends
  noised = sends is not None and sends.server is not None
  if clients and not noised:
    return algorithm.step
  return _limited_step(algorithm.step, clients, noised)


@functools.lru_cache(1)  # One trace for the rehearsal and the program.
def _limited_step(with_all: Step, clients: bool, noised: bool) -> Step:
  def step(*args: Any) -> tuple[Any, RoundInfo]:  # Digests of runs hold its name.
    state, info = with_all(*args)
    if noised and info.clusters is not None:
      known = info.clusters._replace(objective=None, objective_parts=None)
      info = info._replace(clusters=known)
    return state, info if clients else info._replace(clients=None)

  return step


def rehearse(
  algorithm: Algorithm,
  data: FederatedData,
  cohort: Cohort,
  init_key: jax.Array,
  round_key: jax.Array,
) -> tuple[Any, jax.stages.Traced]:
  """Traces the initialization and a round without computing anything.

  `data` are on the devices, `cohort` has the clients of any round, and the keys are the
  streams of the initialization and of the rounds. Returns shapes and shardings of the
  state, and the traced round.
  """
  state = placed_state(algorithm, data, init_key)
  traced = jax.jit(step_of(algorithm)).trace(state, data, cohort, round_key)
  return state, traced


def compile_start(
  programs: Programs,
  algorithm: Algorithm,
  state: Any,
  data: FederatedData,
  key: jax.Array,
  *,
  wait: bool = True,
) -> Program:
  """`algorithm.init`, compiled unless a program of the same shapes is held already.

  `state` has the shapes and shardings from `rehearse`, `data` are on the devices, and
  `key` is the stream of the initialization. For `wait`, see `Programs.compiled`.
  """
  return programs.compiled(
    ('init', algorithm),
    algorithm.init,
    key,
    data,
    wait=wait,
    out_shardings=_shardings(state),
    **run_once(algorithm.local, data),
  )


def compile_step(
  programs: Programs,
  algorithm: Algorithm,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  *,
  wait: bool = True,
  clients: bool = False,
) -> Program:
  """`algorithm.step`, compiled unless a program of the same shapes is held already.

  Each call takes over the memory of the state that it is given and leaves the new state
  on the same devices. `state` is the state on the devices, or its shapes; `data` are on
  the devices, `cohort` has the clients of any round, and `key` is the stream of the
  rounds. For `wait`, see `Programs.compiled`, and for `clients`, `step_of`.
  """
  return programs.compiled(
    ('step', algorithm, clients) if clients else ('step', algorithm),
    step_of(algorithm, clients),
    state,
    data,
    cohort,
    key,
    wait=wait,
    donate_argnums=0,
    out_shardings=(_shardings(state), None),
  )


def run_round(
  algorithm: Algorithm,
  step: Step,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  number: int,
) -> tuple[Any, RoundInfo]:
  """Runs one round, and what the algorithm decides on the host after it.

  `step` is `algorithm.step`, compiled by `jax.jit`, or by `compile_step`, whose
  programs take over the memory of the state. `data` are on the devices. Round `number`,
  counted from 1, folds its key from `key`, the stream of the rounds. Returns the state
  after the round, sharded as the step left it, and the round's info.
  """
  round_key = prng_streams.folded(key, number)
  state, info = step(state, data, cohort, round_key)
  if algorithm.between is not None:
    shardings = _shardings(state)
    state, info = algorithm.between(state, info)
    state = sharding.place(state, shardings)
  return state, info


def _shardings(state: Any) -> Any:
  return jax.tree.map(lambda x: x.sharding, state)
