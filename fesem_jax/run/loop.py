"""The rounds of a run: train, measure, tell callbacks."""

import time
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from fesem_jax.callbacks.calls import FINISHED, Callbacks
from fesem_jax.callbacks.events import Evaluation, Round, RoundEnd
from fesem_jax.core import feature_range, prng_streams
from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.results import records
from fesem_jax.run.evaluation import DerivedClusters, Measured
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.programs import wait_for
from fesem_jax.run.rounds import run_round
from fesem_jax.run.watching import arranged
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import Diverged, argument
from fesem_jax.utils.interrupts import Stopped, interruptible


class Finished(NamedTuple):
  """A run after its last round."""

  state: Any  # of the method
  measured: Measured  # the models that it deploys
  reason: str  # why it ended; see `End`
  seconds: list[float]  # of each round of this process
  steps: int  # SGD steps of these rounds


def run_rounds(run: Prepared, callbacks: Callbacks, reason: str | None) -> Finished:
  """Runs all rounds that are left; `reason` is why none is, or None.

  Raises `Diverged` and `Stopped`; see `simulate`.
  """
  settings, evaluation, history = run.settings, run.evaluation, run.out.records
  step, _ = wait_for(*run.step())
  state, done, steps, seconds = run.state, run.done, 0, []
  placed = arranged(run)
  if not done and (clusters := evaluation.clusters(state)):
    record = {'round': 0, **clusters, 'seconds': run.init_seconds}
    start = RoundEnd(number=0, record=record, records=(), state=state, arranged=placed)
    callbacks.on_round_end(start, interrupted=False)
    warning = records.lopsided(clusters['cluster_sizes'], clusters['ari'])
    if warning and processes.is_first():
      logging.warning('Before the first round: %s', warning)
  derived = DerivedClusters(evaluation, run.like, state)
  measured: Measured | None = None
  with interruptible() as interrupted:
    while reason is None:
      done += 1
      if run.enter(done):
        placed = arranged(run)
      began = time.perf_counter()
      cohort = run.draw(done)
      state, info = run_round(
        run.algorithm, step, state, run.data.train, cohort,
        run.keys[prng_streams.ROUNDS], done,
      )  # fmt: skip
      info = processes.on_host(info)
      seconds.append(time.perf_counter() - began)
      steps += int(info.steps)
      info = derived.added_to(info, state)
      _check_finite(done, info, run)
      record = records.round_record(done, info, run.data.train)
      now: dict[str, Any] = {
        'number': done, 'record': record, 'records': tuple(history), 'state': state,
        'arranged': placed,
      }  # fmt: skip
      trained = Round(info=info, drawn=cohort, seconds=seconds[-1], **now)
      reason = callbacks.on_round(trained)
      if done == settings.rounds:
        reason = FINISHED
      if reason or _due(done, settings.eval_every):
        measured = None  # Of many clients, two of them take much memory.
        with progress_lines.within_a_round('evaluating'):
          measured = evaluation.measure(state, done)
        record |= evaluation.record(measured)
        asked = callbacks.on_evaluation(
          Evaluation(measured=measured, table=evaluation.clients, **now)
        )
        reason = reason or asked
      record['seconds'] = seconds[-1]
      end = RoundEnd(last=reason is not None, **now)
      if callbacks.on_round_end(end, interrupted()):
        callbacks.raise_error(_kept(done, run))
        if reason is None:
          raise Stopped.after(done, settings.rounds, run.folder)
  if measured is None:  # Nothing was left to do.
    measured = evaluation.measure(state, done)
    record = history[-1] | evaluation.record(measured)
    # Callbacks may have columns and figures of the last evaluation to add.
    told = Evaluation(
      number=done, record=record, records=tuple(history[:-1]), state=state,
      arranged=placed, measured=measured, table=evaluation.clients,
    )  # fmt: skip
    callbacks.on_evaluation(told)
    if record != history[-1]:  # Stopped here between evaluations, say.
      run.out.amend(record)
    callbacks.raise_error(_kept(done, run))
  return Finished(state, measured, reason, seconds, steps)


def _kept(done: int, run: Prepared) -> str:
  """What is left of a run that a callback ended with an error."""
  if run.folder is None:
    return f'A callback raised this by round {done}; nothing was saved (no workdir).'
  return (
    f'A callback raised this. Round {done} is saved in {run.folder}; the same command '
    'continues after it.'
  )


def _due(done: int, every: int) -> bool:
  """Whether something that is done every so many rounds is due; 0 is never."""
  return bool(every) and done % every == 0


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
  lower = '`learning_rate`'
  if penalties := run.algorithm.penalties:
    lower += f', or the penalty ({", ".join(map(argument, penalties))})'
  data = run.data.on_host
  features = feature_range.of_features(data.x, data.scale)
  large = features.size.max(initial=0) > feature_range.MOST_SIZE
  scale = ': bring them near 1 first' if large else ''
  raise Diverged(
    f'Round {round_number}: {what}; lower {lower}. Features go '
    f'{features.in_words()}{scale}.{kept}'
  )
