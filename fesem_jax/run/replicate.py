"""A run on the host: its data, files, records and callbacks, round by round."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.algorithm import ClientModels, Clusters, RoundInfo
from fesem_jax.core.arrangement import arrange, order_of_clients
from fesem_jax.core.types import Cohort
from fesem_jax.data.attacks import backdoor_of
from fesem_jax.evaluation import privacy
from fesem_jax.models.starting import whole_model, with_constants
from fesem_jax.run import evaluation, programs
from fesem_jax.run.callbacks import additions
from fesem_jax.run.callbacks.callback import Callback, Event, call
from fesem_jax.run.callbacks.costs import Costs
from fesem_jax.run.checks import check_before
from fesem_jax.run.configuration import identity
from fesem_jax.run.evaluation import Measured
from fesem_jax.run.results import files, records
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, fetched
from fesem_jax.run.runner import Runner, Splits, with_memory
from fesem_jax.run.selecting import selected
from fesem_jax.run.spec import Spec
from fesem_jax.run.workdir import claim_workdir
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import Diverged, WorkdirError
from fesem_jax.utils.interrupts import Stopped


class Replicate:
  """One of the runs of a `Runner`, from its start to its end.

  `opened` closes what the run has opened. Raises `UserError` as `simulate`.

  Attributes:
    reason: why no round is left, or None; see `Event.reason`.
    error: of a run that diverged.
    measured: what was measured after the last round, if it was.
    seconds: of each round of this process.
  """

  def __init__(
    self,
    spec: Spec,
    runner: Runner,
    splits: Splits,
    opened: contextlib.ExitStack,
    shows: bool = True,
  ):
    self.spec, self.runner, self.splits, self.opened = spec, runner, splits, opened
    self.algorithm = with_memory(spec.algorithm)
    self.on_host, self._phase, self._data_changed = spec.train, 0, False
    self.places = np.argsort(order_of_clients(self.algorithm.local, spec.train))
    self.task = self.algorithm.local.model.measured_as
    self.reason: str | None = None
    self.error: Diverged | None = None
    self.measured: Measured | None = None
    self.state: Any = None
    self.seconds, self.steps = list[float](), 0
    self.found = check_before(spec, runner)
    self.checkpoints = None
    if spec.workdir is not None:
      with progress_lines.waiting_for('a digest of the data'):
        entries = identity(spec, runner, splits[0])
      claimed = claim_workdir(spec.workdir, entries, spec.resume)
      self.checkpoints = opened.enter_context(claimed)
    self.done = self.checkpoints.latest_round() or 0 if self.checkpoints else 0
    if self.done > spec.rounds:
      message = f'rounds: the workdir holds {self.done}, more than {spec.rounds}'
      raise WorkdirError(message)
    self.out = files.MetricsWriter(spec.workdir, self.done)
    self.notes = list[str]()  # sentences that the summary keeps
    self.callbacks = [*self._additions(), *spec.callbacks]
    self._display = progress_lines.current.get() if shows else None
    self.enter(max(self.done, 1))

  def _additions(self) -> list[Callback]:
    """Callbacks that every run has, or that follow from its options."""
    spec, local, first = self.spec, self.algorithm.local, list[Callback]()
    used, sends = self.runner.deployed, local.sends
    if not any(isinstance(callback, Costs) for callback in spec.callbacks):
      first.append(Costs())
    if sends is not None and sends.privacy is not None:
      noise, traffic = sends.privacy, self.algorithm.traffic
      first.append(additions.privacy_spent(noise, traffic, spec.sampling_rate))
      self.notes = privacy.notes(noise, traffic, used.has_clusters())
    if (backdoor := backdoor_of(spec.train)) is not None:
      first.append(additions.backdoor_success(spec.train, backdoor.target))
    is_shared = used.personal is None and used.mixture is None
    if spec.test.server_test is not None and is_shared:
      first.append(additions.server_metrics(local, spec.test))
    return first

  def enter(self, number: int) -> bool:
    """Goes on to the data of a round, from 1; returns whether they are others."""
    phases, local = self.spec.phases, self.algorithm.local
    phase = max(i for i, p in enumerate(phases) if p.first_round <= number)
    self._data_changed = phase != self._phase
    if self._data_changed:
      self._phase, (_, train, test) = phase, phases[phase]
      self.on_host = train
      placed = placement.of(self.splits[0])
      train, test = arrange(local, train, test, data_placement=placed)
      self.splits = train, test
    return self._data_changed

  def select(self, number: int, state: Any) -> tuple[Cohort, dict[str, Any]]:
    """The clients of a round, and entries of its record on their selection."""
    return selected(self.spec, self.algorithm, state, self.splits[0], number)

  def deploy(self, state: Any) -> ClientModels:
    """The models that clients deploy from a state, as arranged."""
    args, deployed = (state, self.splits[0]), self.algorithm.deployed
    if not self.runner.is_offloaded:  # A program would copy the models.
      what, options = 'the deployed models', programs.with_passes(0)
      deployed = programs.compiled(what, self.algorithm, deployed, *args, **options)
    return with_constants(self.algorithm.local.model, deployed(*args))

  def deployed(self, state: Any) -> DeployedModels:
    """The same on the host, by the names of clients."""
    model, train = whole_model(self.algorithm.local.model), self.splits[0]
    names = np.asarray(self.on_host.info.names)
    models = fetched(self.deploy(state), self.places)
    return DeployedModels.of(models, names, Examples.of(train), model)

  def event(self, **now: Any) -> Event:
    """The event of a moment of the run."""
    spec = self.spec
    now = dict[str, Any](number=self.done, records=tuple(self.out.records)) | now
    return Event(
      algorithm=self.algorithm, train=self.on_host, test=spec.test, rounds=spec.rounds,
      seed=spec.seed, workdir=spec.workdir, config=spec.config, arranged=self.splits,
      places=self.places, compiled=programs.compiled, deployed=self.deployed, **now,
    )  # fmt: skip

  def begin(
    self, state: Any, clusters: Any, seconds: float, measure: Callable[[], Measured]
  ) -> None:
    """Calls callbacks before the next round; `measure` measures the start."""
    self._clusters, start = clusters, dict[str, Any]()
    if not self.done and clusters is not None:
      count = self.runner.deployed.num_clusters()
      start = records.clusters(clusters, count, self.splits[0])
    if not self.done and self.spec.eval_start:
      start |= evaluation.record(measure(), *self.splits, self.task)
    if start:
      self.out.write({'round': 0, **start, 'seconds': seconds})
    history = self.out.records
    record, before = (history[-1], history[:-1]) if history else ({}, [])
    now = {'record': record, 'records': tuple(before), 'clusters': clusters}
    event, end = self.event(state=state, **now), record.get('stopped')
    reasons = []
    for callback in self.callbacks:

      def close(kind: Any, error: Any, trace: Any, callback: Any = callback) -> None:
        callback.close(error)

      self.opened.push(close)
      reasons.append(call([callback], 'on_start', event, {}))
    self.reason = next(filter(None, reasons), None)
    if self.done == self.spec.rounds:
      self.reason = 'finished'
    elif end and end['rounds'] >= self.spec.rounds:  # More rounds continue it.
      self.reason = end['reason']
    elif self.reason is None and records.settled(history, self.spec.patience):
      self.reason = 'patience'
    measured = [r for r in history if 'finetuned' in r]
    self._last_measured = measured[-1] if measured else {}
    if self._display is not None and self.reason is None:
      self._display.rounds(self.done, self.spec.rounds)

  def after_round(
    self,
    cohort: Cohort,
    info: RoundInfo,
    clusters: Any,
    seconds: float,
    measure: Callable[[], Measured],
    state: Callable[[], Any],
    *,
    interrupted: bool = False,
    **entries: Any,
  ) -> Stopped | None:
    """Records a round; returns the exception of a run that is interrupted after it.

    `clusters` are those that clients deploy from, if not in `info`. Raises `Diverged`
    if nothing sound is left.
    """
    spec, (train, test) = self.spec, self.splits
    self.done, self.steps = self.done + 1, self.steps + int(info.steps)
    self.seconds.append(seconds)
    info = self._with_clusters(info, clusters)
    self._check_finite(info)
    if info.clusters is not None:
      self._clusters = np.asarray(info.clusters.assignment)
    record = records.round_record(self.done, info, train) | entries
    record['seconds'] = seconds
    settled = records.settled([*self.out.records, record], spec.patience)
    self.reason = 'patience' if settled else None
    if self.done == spec.rounds:
      self.reason = 'finished'
    assignment = None if info.clusters is None else self._clusters
    now = {'record': record, 'info': info, 'drawn': cohort, 'clusters': assignment}
    now['state'] = state() if self.runner.most == 1 else None
    every, self.measured = spec.eval_every, None
    while True:
      if self.reason is not None or (every and self.done % every == 0):
        self.measured = now['measured'] = measure()
        record |= evaluation.record(self.measured, train, test, self.task)
        now['clusters'] = self.measured.assignment
        self._last_measured = record
      reason = call(self.callbacks, 'on_round', self.event(**now), record)
      if reason is not None and self.done < spec.rounds:
        record['stopped'] = {'reason': reason, 'rounds': spec.rounds}
      self.reason = self.reason or reason
      if reason is None or self.measured is not None:
        break
    over, halted = self.reason is not None, processes.any_of(interrupted)
    self.out.write(record)
    every = spec.checkpoint_every
    if over:
      self.state = state()
    if self.checkpoints and (over or halted or (every and self.done % every == 0)):
      self.checkpoints.save(self.done, self.state if over else state())
    if self._display is not None:
      shown = records.progress(record, self._last_measured, self.task)
      self._display.rounds(self.done, spec.rounds, shown, over=over or halted)
    is_stopped = halted and not over
    return Stopped.after(self.done, spec.rounds, spec.workdir) if is_stopped else None

  def measure_again(self, measured: Measured, state: Any) -> None:
    """Keeps what was measured of a run of which no round was left."""
    *before, last = self.out.records
    self.measured, self.state = measured, state
    record = last | evaluation.record(measured, *self.splits, self.task)
    # Callbacks may have columns and figures of the last evaluation to add.
    now = {'record': record, 'records': tuple(before), 'state': state}
    now |= {'measured': measured, 'clusters': measured.assignment}
    call(self.callbacks, 'on_round', self.event(**now), record)
    if record != last:  # Stopped here between evaluations, say.
      self.out.amend(record)

  def _with_clusters(self, info: RoundInfo, after: Any) -> RoundInfo:
    """The report of a method on a round, with clusters and moves that it left out.

    Clients deploy from clusters [M] `after` the round, if the method does not say.
    """
    before, reported, real = self._clusters, info.clusters, len(self.on_host.info.names)
    if before is None or (reported is None and after is None):
      return info
    if reported is None:
      count = self.runner.deployed.num_clusters()
      sizes: Any = np.bincount(after[:real], minlength=count)
      moved = (before != after)[:real].sum()
      return info._replace(clusters=Clusters(after, sizes, moved))
    # Where data changed, the state knows nothing of moves of an oracle.
    if not self._data_changed or reported.moved:
      return info
    now = np.asarray(reported.assignment)
    moved = ((before != now) & (now < len(reported.sizes)))[:real].sum()
    return info._replace(clusters=reported._replace(moved=moved))

  def _check_finite(self, info: RoundInfo) -> None:
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
    saved = self.checkpoints and self.checkpoints.latest_round()
    checkpoint = f' The checkpoint of round {saved} is kept.' if saved else ''
    raise Diverged(f'Round {self.done}: {what}; lower `learning_rate`.{checkpoint}')
