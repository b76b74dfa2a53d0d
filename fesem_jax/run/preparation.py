"""The steps of a run before its first round: data, programs, workdir, state."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.algorithms.wrappers.client_memory import (
  kept_parts,
  with_client_memory,
)
from fesem_jax.core import placement, prng_streams
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.arrangement import (
  draw_cohort,
  held_here,
  selected_cohort,
)
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.checks import check_run
from fesem_jax.run.configuration import code_of, default_config
from fesem_jax.run.evaluation import Evaluator
from fesem_jax.run.programs import Program, Programs, wait_for
from fesem_jax.run.results import files, privacy
from fesem_jax.run.resume import begin, digest_of_data
from fesem_jax.run.rounds import compile_start, compile_step, keys_of_run, rehearse
from fesem_jax.run.rule_subjects import check_before
from fesem_jax.run.selecting import selected
from fesem_jax.run.spec import Spec
from fesem_jax.run.timeline import Data, Timeline
from fesem_jax.run.workdir import claim_workdir
from fesem_jax.utils import free_memory, processes, progress_lines


class Prepared(NamedTuple):
  """A run before its next round."""

  algorithm: Algorithm
  spec: Spec
  timeline: Timeline
  notes: Sequence[str]  # sentences that the summary keeps
  keys: dict[int, jax.Array]  # of each random stream
  programs: Programs
  evaluation: Evaluator
  checkpoints: Checkpoints | None
  out: files.MetricsWriter
  step: Any  # gives the compiled round and evaluation, which are made once
  traced: jax.stages.Traced  # a round
  shapes: Any  # and shardings of the state
  state: Any  # of the method
  done: int  # rounds that are done
  init_seconds: float  # that the start took
  found: Sequence[str] = ()  # by the rules of `checks`

  @property
  def like(self) -> RoundInfo:
    """Shapes of what a round reports."""
    return self.traced.out_info[1]

  @property
  def data(self) -> Data:
    """Data of the present round."""
    return self.timeline.data

  def enter(self, number: int) -> bool:
    """Goes on to the data of a round, from 1; returns whether they are others."""
    changed = self.timeline.enter(number)
    if changed:
      self.evaluation.use(self.data.train, self.data.test)
    return changed

  def draw(self, number: int) -> Cohort:
    """The clients of a round, whose number is counted from 1.

    Where they are selected, a cohort of no client with places for as many.
    """
    return _draw(self.spec, self.data.train, number)

  def select(self, number: int, state: Any) -> tuple[Cohort, dict[str, Any]]:
    """The clients of a round, and what its record says of how they were selected.

    `state` is that before the round.
    """
    if self.spec.selection is None:
      return self.draw(number), {}
    return selected(
      self.spec, self.algorithm, state, self.data.train, number, self.programs
    )


def placed(spec: Spec) -> Timeline:
  """The data of a run on its devices; raises `UserError` on what cannot be run."""
  free_memory.give_back()  # That of the caller, and of earlier runs.
  check_run(spec)
  with progress_lines.waiting_for('placing the data'):
    return Timeline(spec)


def prepare(
  spec: Spec, timeline: Timeline, programs: Programs, opened: contextlib.ExitStack
) -> Prepared:
  """Does what a run does before there is a state, which `start` adds.

  `opened` closes what the run has opened. For the `UserError` that it raises, see
  `simulate`.
  """
  algorithm = given = spec.algorithm
  folder = spec.workdir
  if kept_parts(algorithm.local):  # One wrapper: runs of one method share programs.
    algorithm = programs.once(('sent', given), lambda: with_client_memory(given))
  local, keys = algorithm.local, keys_of_run(spec.seed, algorithm.local.mesh)
  data = timeline.data  # Of round 1.
  first = _draw(spec, data.train, 1)
  init_key, round_key = keys[prng_streams.INIT], keys[prng_streams.ROUNDS]
  # A method's objections are raised here, before anything is written.
  with progress_lines.waiting_for('checking the method on the data'):
    like, traced = programs.once(
      ('rehearsal', algorithm),
      lambda: rehearse(algorithm, data.train, first, init_key, round_key),
      data.train,
      first,
    )
  found = check_before(spec, algorithm, timeline, like, first, programs)
  checkpoints = None
  if folder is not None:
    with progress_lines.waiting_for('a digest of the data'):
      identity = _identity(spec, algorithm, data, traced, programs)
    checkpoints = opened.enter_context(claim_workdir(folder, identity, spec.resume))
  evaluation = Evaluator(
    algorithm, data.train, data.test, spec.finetune_epochs,
    keys[prng_streams.FINETUNE], programs, like,
  )  # fmt: skip

  def step_and_evaluation() -> tuple[Program, Program]:
    step = compile_step(
      programs, algorithm, like, data.train, first, round_key, wait=False,
      clients=spec.wants_clients,
    )  # fmt: skip
    return step, evaluation.compile(wait=False)

  sharded = data.placement == 'sharded'
  notes = list(spec.notes)
  notes += [placement.note(local.mesh, data.train, data.test)] if sharded else []
  if (sends := local.sends) is not None and sends.privacy is not None:
    clustered = jax.eval_shape(algorithm.deployed, like, data.train).has_clusters()
    rate = spec.sampling_rate
    notes += privacy.notes(sends.privacy, algorithm.traffic, rate, clustered)
  return Prepared(
    algorithm, spec, timeline, notes, keys, programs, evaluation, checkpoints,
    files.MetricsWriter(None), step_and_evaluation, traced, like, None, 0, 0.0,
    found,
  )  # fmt: skip


def start(run: Prepared, opened: contextlib.ExitStack) -> Prepared:
  """A prepared run with the state that it starts from, or continues from."""
  algorithm, train = run.algorithm, run.data.train
  key = run.keys[prng_streams.INIT]

  def init() -> Program:
    program = compile_start(run.programs, algorithm, run.shapes, train, key, wait=False)
    wait_for(program, *run.step())
    return program

  state, done, seconds = begin(
    init, key, train, run.shapes, run.checkpoints, run.spec.rounds
  )
  return with_state(run, opened, state, done, seconds)


def with_state(
  run: Prepared,
  opened: contextlib.ExitStack,
  state: Any,
  done: int = 0,
  init_seconds: float = 0.0,
) -> Prepared:
  """A prepared run with a state, which took `init_seconds`, after `done` rounds."""
  out = files.MetricsWriter(run.spec.workdir, done)
  opened.callback(out.close)
  run = run._replace(out=out, state=state, done=done, init_seconds=init_seconds)
  run.enter(max(done, 1))
  return run


def _draw(spec: Spec, train: FederatedData, number: int) -> Cohort:
  count, mesh = spec.clients_per_round, spec.algorithm.local.mesh
  if spec.selection is not None:
    return selected_cohort(np.zeros(0, np.int64), count, number, train, mesh)
  return draw_cohort(spec.seed, number, count, train, mesh)


def _identity(
  spec: Spec,
  algorithm: Algorithm,
  data: Data,
  traced: jax.stages.Traced,
  programs: Programs,
) -> dict[str, Any]:
  """Entries that a workdir must have in common with the run that continues it."""
  local, phases = algorithm.local, spec.phases
  identity = default_config(spec) if spec.config is None else spec.config
  if spec.config is None or 'own_code' in spec.config:
    train = data.train
    code = programs.once(('code', traced), lambda: code_of(algorithm, traced, train))
    identity = identity | {'code': code}
  pairs = [(train, test) for _, train, test in phases]
  if data.unseen is not None:
    pairs.append(data.unseen)
  here = [held_here(local, train, data.placement) for train, _ in pairs]
  digest = digest_of_data(
    *(split for pair in pairs for split in pair),
    here=[own for own in here for _ in range(2)],
  )
  identity = identity | {'data_digest': digest}
  if phases[1:]:
    identity |= {'data_change_in': [phase.first_round for phase in phases[1:]]}
  identity |= placement.identity(data.train, local.mesh)
  processes.check_same('its configuration or data', identity)
  return identity
