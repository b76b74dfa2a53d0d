"""A round of any algorithm: its keys, its program, and the one way to run it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import IN_ROUND, LocalTraining
from fesem_jax.core.types import Cohort
from fesem_jax.run import own_functions
from fesem_jax.run.programs import Program, Programs, run_once
from fesem_jax.run.state_placement import placed_state
from fesem_jax.run.traced import Traced
from fesem_jax.training.calls import Call, calls_noted
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once

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
  return _told(algorithm.step, clients, noised)


@functools.lru_cache(1)  # One trace for the rehearsal and the program.
def _told(with_all: Step, clients: bool, noised: bool) -> Step:
  def step(*args: Any) -> tuple[Any, RoundInfo]:  # Digests of runs hold its name.
    pair = with_all(*args)
    if not (
      isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], RoundInfo)
    ):
      raise UserError('`step` of the method must return the new state and a RoundInfo.')
    state, info = pair
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
  state, and the traced round. Raises `UserError` if the algorithm cannot be run on this
  data.
  """
  state = placed_state(algorithm, data, init_key)
  args = state, data, cohort, round_key
  own = algorithm.made_by is None or bool(algorithm.made_by.code)
  if own:
    own_functions.check_draws('`init` of the method', algorithm.init, init_key, data)
  token, twin = IN_ROUND.set(True), None
  try:
    if own:
      watched = step_of(algorithm._replace(step=_drawn_only(algorithm)))
      twin = own_functions.traced_anew(watched, *args)
    with calls_noted() as calls:  # Last: the program takes this trace.
      traced = jax.jit(step_of(algorithm)).trace(*args)
    _warn_of_own_kernels(algorithm.local, calls)
  finally:
    IN_ROUND.reset(token)
  if twin is not None:
    own_functions.compare_draws('`step` of the method', twin, Traced(traced))
    own_functions.check_key(twin, *args)
    dropout_rate = algorithm.local.dropout_rate
    own_functions.check_means(twin, traced.out_info[0], args, dropout_rate)
  _check_state(state, traced.out_info[0])
  return state, traced


def _warn_of_own_kernels(local: LocalTraining, calls: Sequence[Call]) -> None:
  """Warns where `shared_start='on'` has no effect on the local training of a round."""
  own = [not call.kernels for call in calls]
  if local.shared_start == 'on' and any(own):
    effect = 'has no effect' if all(own) else 'has an effect on some training only'
    warn_once(
      f'{argument("shared_start", "on")} {effect}: it needs dense layers of a Flax '
      'Linen module, plain SGD, and a method whose clients start from models of the '
      'server and take the steps of `train_cohort`.'
    )


def _drawn_only(algorithm: Algorithm) -> Step:
  """A round that warns where its clients are not those that epsilon counts."""
  sends = algorithm.local.sends

  def step(state: Any, data: FederatedData, cohort: Cohort, key: jax.Array) -> Any:
    with calls_noted() as calls:
      results = algorithm.step(state, data, cohort, key)
    others = any(call.cohort.ids is not cohort.ids for call in calls)
    if sends is not None and sends.server and others and not cohort.everyone:
      warn_once(
        '`dp=server`: the method trains clients of a cohort of its own; epsilon counts '
        'those that are drawn for each round, and does not hold if others, or more, '
        'train.'
      )
    if sends is not None and sends.privacy is not None and len(calls) > 1:
      warn_once(
        f'`{sends.named}`: the method trains clients {len(calls)} times in a round; '
        'epsilon counts one model that each sends, and does not hold if it sends more.'
      )
    return results

  return step


def _check_state(before: Any, after: Any) -> None:
  """Raises `UserError` unless a round leaves the structure of the state as it was."""
  old, new = (
    {jax.tree_util.keystr(path): x for path, x in jax.tree.leaves_with_path(state)}
    for state in (before, after)
  )
  for name in old | new:
    a, b = (
      f'{x[name].dtype}{list(x[name].shape)}' if name in x else 'nothing'
      for x in (new, old)
    )
    if a != b:
      raise UserError(
        f'`step` of the method returns a state with {a} at {name or "its root"}, where '
        f'`init` has {b}; shapes and dtypes must stay the same.'
      )


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
