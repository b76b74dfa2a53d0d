"""The rounds of one run, or of several side by side: train, measure, tell callbacks."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.core.types import Cohort
from fesem_jax.run.callbacks.calls import FINISHED, Callbacks
from fesem_jax.run.callbacks.events import Evaluation, Round, RoundEnd
from fesem_jax.run.evaluation import DerivedClusters, Measured
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.programs import wait_for
from fesem_jax.run.results import records
from fesem_jax.run.rounds import run_round
from fesem_jax.run.watching import arranged
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import Diverged
from fesem_jax.utils.interrupts import Stopped, interruptible


class TrainedRound(NamedTuple):
  """A round of one run, on the host."""

  cohort: Cohort
  info: RoundInfo  # as the method reports it
  assignment: np.ndarray | None  # [M] int32 that clients deploy from, if not in `info`
  seconds: float
  selected: dict[str, Any] | None = None  # said of how its clients were selected


class OnDevices(Protocol):
  """The states of runs that are equally far, and the programs that change them."""

  states_are_read: bool  # whether every round needs the states of all runs

  def assignments(self) -> list[np.ndarray | None]:
    """[M] int32 cluster that each client deploys from, of each run, before a round."""

  def train(self, number: int) -> list[list[TrainedRound]]:
    """Trains one round or several from `number` on: of each round, of each run."""

  def measure(self, number: int) -> list[Measured]:
    """Measures what clients deploy after the round `number`, of each run."""

  def state(self, run: int) -> Any:
    """The state of a run."""


class Alone:
  """The state of one run; see `OnDevices`."""

  states_are_read = True

  def __init__(self, run: Prepared):
    self._run, self._state = run, run.state
    self._step, _ = wait_for(*run.step())

  def assignments(self) -> list[np.ndarray | None]:
    """[M] int32 of the only run, where it is asked for."""
    run = self._run
    is_needed = not run.done or run.like.clusters is None or run.spec.later_phases
    return [run.evaluation.assignment(self._state) if is_needed else None]

  def train(self, number: int) -> list[list[TrainedRound]]:
    """Trains one round."""
    run, began = self._run, time.perf_counter()
    cohort, of_selection = run.select(number, self._state)
    self._state, info = run_round(
      run.algorithm, self._step, self._state, run.data.train, cohort,
      run.keys[prng_streams.ROUNDS], number,
    )  # fmt: skip
    info = processes.on_host(info)
    seconds, assignment = time.perf_counter() - began, None
    if info.clusters is None:
      assignment = run.evaluation.assignment(self._state)
    return [[TrainedRound(cohort, info, assignment, seconds, of_selection)]]

  def measure(self, number: int) -> list[Measured]:
    """Measures what clients deploy."""
    with progress_lines.waiting_for('evaluating'):
      return [self._run.evaluation.measure(self._state, number)]

  def state(self, run: int) -> Any:
    """The state."""
    return self._state


class Running:
  """A run between its start and its end, on the host.

  `reason` says why no round is left, or is None; see `End`. `place` is its place among
  the runs of `OnDevices`.
  """

  def __init__(
    self, run: Prepared, callbacks: Callbacks, reason: str | None, place: int = 0
  ):
    self.run, self.callbacks, self.reason, self.place = run, callbacks, reason, place
    self.done, self.steps, self.seconds = run.done, 0, list[float]()
    self.measured: Measured | None = None  # the models that it deploys at the end
    self.state: Any = None  # after the last round
    self.error: Diverged | None = None
    self._placed, self._event = arranged(run), dict[str, Any]()
    self._data_changed = False  # since the last round

  def begin(self, assignment: np.ndarray | None, state: Any) -> None:
    """Records the clusters before the first round."""
    run = self.run
    self._derived = DerivedClusters(run.evaluation, assignment)
    if self.done or assignment is None:
      return
    clusters = run.evaluation.clusters(assignment)
    record = {'round': 0, **clusters, 'seconds': run.init_seconds}
    start = RoundEnd(
      number=0, record=record, records=(), state=state, arranged=self._placed
    )
    self.callbacks.on_round_end(start, interrupted=False)

  def enter(self) -> None:
    """Goes on to the data of the next round."""
    self._data_changed = self.run.enter(self.done + 1)
    if self._data_changed:
      self._placed = arranged(self.run)

  def on_trained(self, trained: TrainedRound, state: Any) -> None:
    """Takes note of a round; `state` is None where it is not read."""
    run, self.done = self.run, self.done + 1
    self.seconds.append(trained.seconds)
    self.steps += int(trained.info.steps)
    info = self._derived.added_to(trained.info, trained.assignment, self._data_changed)
    _check_finite(self.done, info, run)
    record = records.round_record(self.done, info, run.data.train)
    record |= trained.selected or {}
    self._event = {
      'number': self.done, 'record': record, 'records': tuple(run.out.records),
      'arranged': self._placed,
    }  # fmt: skip
    self.measured = None  # Of many clients, two of them take much memory.
    self.reason = self.callbacks.on_round(
      Round(
        info=info,
        drawn=trained.cohort,
        seconds=trained.seconds,
        state=state,
        **self._event,
      )
    )
    if self.done == run.spec.rounds:
      self.reason = FINISHED

  @property
  def is_due(self) -> bool:
    """True if the deployed models are to be evaluated after this round."""
    every = self.run.spec.eval_every
    return self.reason is not None or (bool(every) and self.done % every == 0)

  def on_measured(self, measured: Measured, state: Any) -> None:
    """Takes note of what was measured after the round."""
    self.measured, evaluation = measured, self.run.evaluation
    self._event['record'] |= evaluation.record(measured)
    reason = self.callbacks.on_evaluation(
      Evaluation(
        measured=measured, table=evaluation.clients, state=state, **self._event
      )
    )
    self.reason = self.reason or reason

  def on_end(self, state: Any, interrupted: bool) -> Stopped | None:
    """Ends the round; returns the exception of a run that is interrupted here."""
    self._event['record']['seconds'] = self.seconds[-1]
    end = RoundEnd(last=self.reason is not None, state=state, **self._event)
    if self.callbacks.on_round_end(end, interrupted):
      self.callbacks.raise_error(self._kept())
      if self.reason is None:
        return Stopped.after(self.done, self.run.spec.rounds, self.run.spec.workdir)
    return None

  def nothing_left(self, measured: Measured, state: Any) -> None:
    """Takes note of what was measured of a run of which no round was left."""
    out, evaluation = self.run.out, self.run.evaluation
    self.measured, self.state, history = measured, state, out.records
    record = history[-1] | evaluation.record(measured)
    # Callbacks may have columns and figures of the last evaluation to add.
    event = Evaluation(
      number=self.done, record=record, records=tuple(history[:-1]), state=state,
      arranged=self._placed, measured=measured, table=evaluation.clients,
    )  # fmt: skip
    self.callbacks.on_evaluation(event)
    if record != history[-1]:  # Stopped here between evaluations, say.
      out.amend(record)
    self.callbacks.raise_error(self._kept())

  def _kept(self) -> str:
    """A sentence on what is left of a run that a callback ended with an error."""
    folder = self.run.spec.workdir
    if folder is None:
      return (
        f'A callback raised this by round {self.done}; nothing was saved (no workdir).'
      )
    return (
      f'A callback raised this. Round {self.done} is saved in {folder}; the same '
      'command continues after it.'
    )


def run_rounds(runs: Sequence[Running], devices: OnDevices) -> None:
  """Runs all rounds that are left of some runs.

  They are equally far, and have the settings of the first but for their seeds. A run
  that diverges gets its `error`, and the others go on. Raises `Stopped` if they are
  interrupted; see `simulate`.
  """
  reads = devices.states_are_read
  assignments = devices.assignments()
  for each in runs:
    state = devices.state(each.place) if reads else None
    each.begin(assignments[each.place], state)
  with interruptible() as interrupted:
    while unfinished := _unfinished(runs):
      for each in unfinished:
        each.enter()
      rounds = devices.train(unfinished[0].done + 1)
      for trained in rounds[:-1]:
        _end_round(_unfinished(unfinished), trained, devices, lambda: False)
      stopped = _end_round(_unfinished(unfinished), rounds[-1], devices, interrupted)
      if stopped is not None:
        raise stopped
  for each in runs:
    if each.measured is None and not each.error:  # Nothing was left to do.
      measured = devices.measure(each.done)[each.place]
      each.nothing_left(measured, devices.state(each.place))


def _unfinished(runs: Sequence[Running]) -> list[Running]:
  """The runs of which rounds are left."""
  return [each for each in runs if each.reason is None and each.error is None]


def _end_round(
  runs: Sequence[Running],
  trained: Sequence[TrainedRound],
  devices: OnDevices,
  interrupted: Callable[[], bool],
) -> Stopped | None:
  """Tells runs of a round that they have trained, and measures those where it is due.

  Only where it is read, or a run ends, the state is that of the round. Returns the
  exception of a run that is interrupted here.
  """

  def state(each: Running, is_needed: bool = False) -> Any:
    return devices.state(each.place) if is_needed or devices.states_are_read else None

  for each in runs:
    try:
      each.on_trained(trained[each.place], state(each))
    except Diverged as e:
      each.error = e
  finite = [each for each in runs if each.error is None]
  if due := [each for each in finite if each.is_due]:
    measured = devices.measure(due[0].done)
    for each in due:
      each.on_measured(measured[each.place], state(each))
  halted, stopped = interrupted(), None
  for each in finite:
    over = each.reason is not None
    now = state(each, is_needed=over or halted)
    if over:
      each.state = now
    stopped = each.on_end(now, halted) or stopped
  return stopped


def _check_finite(round_number: int, info: RoundInfo, run: Prepared) -> None:
  """Raises `Diverged` if nothing sound is left of a round."""
  value = None if info.clusters is None else info.clusters.objective
  distance = 0.0 if value is None else float(value)
  if info.trained == 0 and info.failed:
    what = 'no client came back with a finite update'
  elif not np.isfinite(info.train_loss):
    what = 'the training loss is not finite'
  elif not np.isfinite(distance):
    what = 'clients are too far from their centers for float32'
  else:
    return
  saved = None if run.checkpoints is None else run.checkpoints.latest_round()
  kept = '' if saved is None else f' The checkpoint of round {saved} is kept.'
  raise Diverged(f'Round {round_number}: {what}; lower `learning_rate`.{kept}')
