"""The steps of a run before its first round: data, programs, workdir, state."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from fesem_jax.algorithms.wrappers.client_memory import (
  kept_parts,
  with_client_memory,
)
from fesem_jax.core import local_optimizers, prng_streams
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from fesem_jax.data import placement
from fesem_jax.data.arrangement import (
  draw_cohort,
  held_here,
  selected_cohort,
)
from fesem_jax.data.phases import Phase
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.checks import check, check_clusters
from fesem_jax.run.configuration import edited
from fesem_jax.run.evaluation import Evaluation
from fesem_jax.run.programs import Program, Programs, wait_for
from fesem_jax.run.results import metrics_file, privacy
from fesem_jax.run.resume import (
  begin,
  default_config,
  digest_of_data,
)
from fesem_jax.run.rounds import compile_start, compile_step, keys_of_run, rehearse
from fesem_jax.run.selecting import selected
from fesem_jax.run.settings import Settings
from fesem_jax.run.timeline import Data, Timeline
from fesem_jax.run.workdir import claim_workdir
from fesem_jax.utils import free_memory, processes, progress_lines


class Prepared(NamedTuple):
  """A run before its next round."""

  algorithm: Algorithm
  settings: Settings
  timeline: Timeline
  config: dict[str, Any] | None  # what identifies the run, as the user gave it
  notes: Sequence[str]  # sentences that the summary keeps
  folder: pathlib.Path | None  # the workdir; None writes nothing
  keys: dict[int, jax.Array]  # of each random stream
  programs: Programs
  evaluation: Evaluation
  checkpoints: Checkpoints | None
  out: metrics_file.MetricsWriter
  step: Any  # gives the compiled round and evaluation, which are made once
  traced: jax.stages.Traced  # a round
  shapes: Any  # and shardings of the state
  state: Any  # of the method
  done: int  # rounds that are done
  init_seconds: float  # that the start took
  # Functions of the user's that were edited since the run began.
  earlier_code: Sequence[str] = ()

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
    return _draw(self.settings, self.data.train, number, self.algorithm.local)

  def select(self, number: int, state: Any) -> tuple[Cohort, dict[str, Any]]:
    """The clients of a round, and what its record says of how they were selected.

    `state` is that before the round.
    """
    if self.settings.selection is None:
      return self.draw(number), {}
    return selected(
      self.settings, self.algorithm, state, self.data.train, number, self.out.records,
      self.programs,
    )  # fmt: skip


def placed(
  algorithm: Algorithm,
  phases: Sequence[Phase],
  unseen: tuple[FederatedData, FederatedData] | None,
  settings: Settings,
  programs: Programs,
) -> Timeline:
  """The data of a run on its devices; raises `UserError` on what cannot be run."""
  free_memory.give_back()  # That of the caller, and of earlier runs.
  check(algorithm, phases, unseen, settings, programs)
  with progress_lines.waiting_for('placing the data'):
    return Timeline(
      algorithm.local, phases, unseen, settings.data_placement,
      settings.clients_per_round,
    )  # fmt: skip


def prepare(
  algorithm: Algorithm,
  timeline: Timeline,
  settings: Settings,
  folder: pathlib.Path | None,
  config: dict[str, Any] | None,
  programs: Programs,
  opened: contextlib.ExitStack,
) -> Prepared:
  """Does what a run does before there is a state, which `start` adds.

  `folder` is the workdir, and `opened` closes what the run has opened. For the other
  arguments and the `UserError` that it raises, see `simulate`.
  """
  given, kept = algorithm, algorithm.local.keep_optimizer_state
  if kept_parts(algorithm.local):  # One wrapper: runs of one method share programs.
    algorithm = programs.once(('sent', given), lambda: with_client_memory(given))
  local, keys = algorithm.local, keys_of_run(settings.seed, algorithm.local.mesh)
  data = timeline.data  # Of round 1.
  first = _draw(settings, data.train, 1, local)
  init_key, round_key = keys[prng_streams.INIT], keys[prng_streams.ROUNDS]
  # A method's objections are raised here, before anything is written.
  with progress_lines.waiting_for('checking the method on the data'):
    like, traced = programs.once(
      ('rehearsal', algorithm),
      lambda: rehearse(algorithm, data.train, first, init_key, round_key),
      data.train,
      first,
    )
  if settings.patience and traced.out_info[1].clusters is None:
    check_clusters(algorithm, like, data.train, settings.patience)
  checkpoints, earlier = None, list[str]()
  if folder is not None:
    with progress_lines.waiting_for('a digest of the data'):
      identity = _identity(settings, timeline.phases, data, given, config)
    checkpoints = opened.enter_context(claim_workdir(folder, identity, settings.resume))
    began = metrics_file.read_config(folder)
    earlier = edited(began or identity, identity)
  evaluation = Evaluation(
    algorithm, data.train, data.test, settings.finetune_epochs,
    keys[prng_streams.FINETUNE], programs, like,
  )  # fmt: skip

  def step_and_evaluation() -> tuple[Program, Program]:
    step = compile_step(
      programs, algorithm, like, data.train, first, round_key, wait=False,
      clients=settings.tell_clients,
    )  # fmt: skip
    return step, evaluation.compile(wait=False)

  sharded = data.placement == 'sharded'
  notes = [placement.note(local.mesh, data.train, data.test)] if sharded else []
  of_optimizer = programs.once(
    ('notes', local.model, local.optimizer, kept),
    lambda: _notes_on_optimizer(local, kept),
  )
  for note in of_optimizer:
    logging.warning('Note: %s', note)
  notes += of_optimizer
  notes += _notes_on_privacy(algorithm, like, settings, data)
  return Prepared(
    algorithm, settings, timeline, config, notes, folder, keys, programs, evaluation,
    checkpoints, metrics_file.MetricsWriter(None), step_and_evaluation,
    traced, like, None, 0, 0.0, earlier,
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
    init, key, train, run.shapes, run.checkpoints, run.settings.rounds
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
  out = metrics_file.MetricsWriter(run.folder, done)
  opened.callback(out.close)
  run = run._replace(out=out, state=state, done=done, init_seconds=init_seconds)
  run.enter(max(done, 1))
  return run


def _notes_on_optimizer(local: LocalTraining, kept: bool) -> list[str]:
  """Sentences on the changes that the reset of its state makes, unless it is `kept`."""
  if kept:
    return []
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  return local_optimizers.notes(local.optimizer, params)


def _notes_on_privacy(
  algorithm: Algorithm, like: Any, settings: Settings, data: Data
) -> list[str]:
  """Sentences on what epsilon covers, which are also logged; none without noise."""
  sends = algorithm.local.sends
  if sends is None or sends.privacy is None:
    return []
  clustered = jax.eval_shape(algorithm.deployed, like, data.train).has_clusters()
  rate = settings.sampling_rate(data.on_host)
  notes = privacy.notes(sends.privacy, algorithm.traffic, rate, clustered)
  if settings.selection is not None:
    notes = [
      *notes,
      f'Epsilon is that of all clients in each round, and covers nothing by which they '
      f'are selected ({settings.selection.name}).',
    ]
  for note in notes:
    logging.warning('Note: %s', note)
  return notes


def _draw(
  settings: Settings, train: FederatedData, number: int, local: LocalTraining
) -> Cohort:
  count, mesh = settings.clients_per_round, local.mesh
  if settings.selection is not None:
    return selected_cohort(np.zeros(0, np.int64), count, number, train, mesh)
  return draw_cohort(settings.seed, number, count, train, mesh)


def _identity(
  settings: Settings,
  phases: Sequence[Phase],
  data: Data,
  algorithm: Algorithm,
  config: dict[str, Any] | None,
) -> dict[str, Any]:
  """Entries that a workdir must have in common with the run that continues it."""
  local, identity = algorithm.local, config
  if identity is None:
    identity = default_config(settings, data.unseen, algorithm)
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
