"""Repeats a client's local training of a finished round, step by step."""

import contextlib
import dataclasses
import math
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.algorithms.wrappers.client_memory import (
  kept_parts,
  with_client_memory,
)
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.data import placement
from fesem_jax.data.arrangement import arrange, draw_cohort, order_of_clients
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.configuration import check_same, code_of
from fesem_jax.run.programs import run_once
from fesem_jax.run.replay_results import Replay, Training, training_of
from fesem_jax.run.results import metrics_file, records
from fesem_jax.run.results.client_table import position_of
from fesem_jax.run.rounds import keys_of_run, rehearse, run_round, step_of
from fesem_jax.training.calls import Call, calls_noted
from fesem_jax.training.trajectory import steps_of, task_of
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import UserError, check

# The local models of the whole round are made again up to so many bytes.
MOST_BYTES = 2**31

# Relative difference of losses and of Eq. 6 that is one of rounding.
_ROUNDING = 1e-5


class _Again(NamedTuple):
  """A run that is done again."""

  algorithm: Algorithm
  workdir: pathlib.Path
  train: FederatedData  # as arranged
  keys: dict[int, jax.Array]  # of its random streams
  cohort: Any  # number of a round -> its clients
  step: Any  # a round, compiled
  history: dict[int, records.Record]  # round -> its record


def replay(
  algorithm: Algorithm,
  train: FederatedData,
  workdir: str | pathlib.Path,
  *,
  round: int,
  client: str,
  seed: int | None = None,
  clients_per_round: int | None = None,
  data_placement: str = 'auto',
) -> Replay:
  """Trains a client again as it did in a round of a run, step by step.

  The rounds since the nearest checkpoint before it, or since the start, are run again
  with the same keys, and the round itself. Nothing in the workdir changes.

  Args:
    algorithm: of the run, on as many devices.
    train: training split of the run.
    workdir: of the run, which need not be finished: the round after its last one is the
      one that diverged.
    round: whose training is wanted, from 1.
    client: its name.
    seed: of the run, if its config.json does not say it.
    clients_per_round: likewise.
    data_placement: see `LocalTraining`.

  Raises:
    UserError: if the workdir holds no such run or round, the client is not in the data
      or in that round, or the method trains where a client cannot be followed.
  """
  folder = pathlib.Path(workdir)
  config = metrics_file.read_config(folder) or {}
  check(config, f'workdir: {folder} holds no run; it has no config.json')
  check(processes.count() == 1, 'replay: runs in a single process')
  numbers = {'seed': seed, 'clients_per_round': clients_per_round} | config
  seed_of_run, per_round = numbers['seed'], numbers['clients_per_round']
  history = {r['round']: r for r in metrics_file.read_metrics(folder / 'metrics.jsonl')}
  last = max(history, default=0)
  finished = metrics_file.read_summary(folder) is not None
  most = last + (not finished)
  check(1 <= round <= most, f'round: {folder} has rounds 1 to {most}; got {round}')
  check(not config.get('data_change_in'), 'workdir: its data change over rounds')
  if algorithm.of_data is not None:
    train = algorithm.of_data(train, ())
  place = position_of(client, np.asarray(train.info.names))
  if kept_parts(algorithm.local):
    keeps = algorithm.local.keep_optimizer_state
    keeps |= algorithm.local.batch_stats == 'local'
    check(not keeps, 'replay: not for keep_optimizer_state or batch_stats=local')
    algorithm = with_client_memory(algorithm)
  local = algorithm.local
  everyone = not 0 < per_round < train.num_clients
  chosen = placement.chosen(
    data_placement, placement.bytes_of(train), local.mesh, everyone
  )
  position = int(np.argsort(order_of_clients(local, train))[place])
  placed, _ = arrange(local, train, train, chosen)

  def cohort(number: int) -> Cohort:
    return draw_cohort(seed_of_run, number, per_round, placed, local.mesh)

  drawn = cohort(round)
  if position not in np.asarray(drawn.ids):
    others = [n for n in range(1, last + 1) if position in np.asarray(cohort(n).ids)]
    where = ', '.join(map(str, others[:10])) or 'none'
    raise UserError(f'client: {client} is not in round {round}; its rounds: {where}')
  keys = keys_of_run(seed_of_run, local.mesh)
  step = jax.jit(step_of(algorithm, clients=True))
  run = _Again(algorithm, folder, placed, keys, cohort, step, history)
  own = train.reorder(np.array([place]))
  return _replayed(run, config, own, round, client, position)


def _replayed(
  run: _Again,
  config: dict[str, Any],
  own: FederatedData,
  number: int,
  client: str,
  position: int,
) -> Replay:
  """The outcome for the client at a position in the data."""
  init_key, round_key = run.keys[prng_streams.INIT], run.keys[prng_streams.ROUNDS]
  first = run.cohort(1)
  like, traced = rehearse(run.algorithm, run.train, first, init_key, round_key)
  if 'code' in config:
    code = {'code': code_of(run.algorithm, traced, run.train)}
    check_same(run.workdir, config, config | code)
  saved = metrics_file.saved_rounds(run.workdir)
  since = max((r for r in saved if r < number), default=0)
  with contextlib.ExitStack() as opened:
    checkpoints = None
    if saved:
      checkpoints = Checkpoints(run.workdir)
      opened.callback(checkpoints.close)
    if since and checkpoints is not None:
      state = checkpoints.load(since, like)
    else:
      options = run_once(run.algorithm.local, run.train)
      shardings = jax.tree.map(lambda x: x.sharding, like)
      init = jax.jit(run.algorithm.init, out_shardings=shardings, **options)
      state = init(init_key, run.train)
    same = []
    for r in range(since + 1, number):
      with progress_lines.waiting_for(f'round {r}'):
        state, info = _round(run, state, r)
      same.append(_agrees(run, r, info))
    with progress_lines.waiting_for(f'round {number}, step by step'):
      trainings = _trainings(run, state, own, number, position)
      state, info = _round(run, state, number)
    same.append(_agrees(run, number, info))
    same_state = None
    if checkpoints is not None and number in saved:
      same_state = _equal(checkpoints.load(number, like), state)
  known = [s for s in same if s is not None]
  reported, arrived = processes.on_host(info.clients), bool(trainings)
  if reported is not None:
    arrived &= bool(
      np.asarray(reported.arrived)[np.asarray(reported.ids) == position].any()
    )
  return Replay(
    number, client, arrived, trainings if arrived else [], since,
    all(known) if known else None, same_state,
  )  # fmt: skip


def _round(run: _Again, state: Any, number: int) -> tuple[Any, RoundInfo]:
  key = run.keys[prng_streams.ROUNDS]
  return run_round(
    run.algorithm, run.step, state, run.train, run.cohort(number), key, number
  )


def _agrees(run: _Again, number: int, info: RoundInfo) -> bool | None:
  """True if a round came to what its record says; None where there is none.

  Numbers that are not whole are those of another program, which rounds differently.
  """
  held = run.history.get(number)
  if held is None:
    return None
  record = records.round_record(number, processes.on_host(info), run.train)
  names = ('train_loss', 'trained', 'failed', 'objective', 'moved')
  return all(_same(record[name], held[name]) for name in names if name in record)


def _same(a: float | None, b: float | None) -> bool:
  """True if two numbers of records are the same, floats up to rounding."""
  if not isinstance(a, float) or not isinstance(b, float):
    return a == b
  return math.isclose(a, b, rel_tol=_ROUNDING) or (math.isnan(a) and math.isnan(b))


def _trainings(
  run: _Again, state: Any, own: FederatedData, number: int, position: int
) -> list[Training]:
  """The local trainings in a round of the client at a position in the data."""
  local, cohort = run.algorithm.local, run.cohort(number)
  shapes = jax.eval_shape(local.model.init, jax.random.key(0))
  size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
  whole = size * len(cohort.ids) <= MOST_BYTES
  calls: list[Call] = []

  def tasks(
    state: Any, train: FederatedData, cohort: Cohort, key: Any, position: Any
  ) -> list[tuple[Any, Any]]:
    with calls_noted() as noted:
      run.algorithm.step(state, train, cohort, key)
    calls[:] = noted
    # A method may train others than the clients that were drawn, as FedBuff.
    own = [call.cohort.ids == position for call in noted]
    return [
      (mine.any(), task_of(call, train, mine.argmax(keepdims=True), whole))
      for mine, call in zip(own, noted, strict=True)
    ]

  key = jax.random.fold_in(run.keys[prng_streams.ROUNDS], number)
  args = (state, run.train, cohort, key, np.int32(position))
  try:
    results = jax.jit(tasks)(*args)
  except jax.errors.UnexpectedTracerError:  # Of a branch, or a loop.
    calls.clear()
  if not calls:  # Branches may have been traced before.
    raise UserError('replay: not for methods that train clients in branches or loops')
  device = local.mesh.devices.flat[0]
  # Its own rows, on one device, of the shapes that all clients have.
  alone = placement.place(own, sharding.client_mesh(1), 'replicated')
  alone = jax.device_put(alone, device)
  replays = []
  for call, (trained, task) in zip(calls, jax.device_get(results), strict=True):
    if not trained:
      continue
    on_each = -(-len(call.cohort.ids) // local.mesh.size)
    width = math.ceil(on_each / math.ceil(on_each / local.clients_per_chunk))
    round_of = dataclasses.replace(cohort, ids=np.zeros(1, np.int32))
    single = call._replace(cohort=round_of)
    again = jax.jit(lambda task, data, c=single, w=width: steps_of(c, task, data, w))
    trainings = jax.device_get(again(task, alone))
    ends = task.ends or [None] * len(trainings)
    replays += [training_of(*pair) for pair in zip(trainings, ends, strict=True)]
  return replays


def _equal(a: Any, b: Any) -> bool:
  """True if two states are the same, bit for bit."""
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return all(
    np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) for x, y in pairs
  )
