"""The rounds of a run: train, report, measure, save."""

import time
from typing import Any, NamedTuple

import numpy as np
import tqdm

from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.results import records
from fesem_jax.run import checkpoint
from fesem_jax.run.evaluation import DerivedClusters, Measured
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.programs import wait_for
from fesem_jax.run.rounds import run_round
from fesem_jax.utils import processes
from fesem_jax.utils.errors import Diverged
from fesem_jax.utils.interrupts import Stopped, interruptible


class Finished(NamedTuple):
  """A run after its last round.

  Attributes:
    state: of the method.
    measured: the models that it deploys.
    seconds: of each round of this process.
    steps: SGD steps of these rounds.
  """

  state: Any
  measured: Measured
  seconds: list[float]
  steps: int


def run_rounds(run: Prepared) -> Finished:
  """Runs all rounds that are left.

  Raises:
    Diverged: see `simulate`.
    Stopped: see `simulate`.
  """
  settings, evaluation, out = run.settings, run.evaluation, run.out
  step, _ = wait_for(*run.step())
  state, done, steps, seconds = run.state, run.done, 0, []
  clusters = {} if done else evaluation.clusters(state)
  if clusters:
    out.write({'round': 0, **clusters, 'seconds': run.init_seconds})
  derived = DerivedClusters(evaluation, run.like, state)
  finished = is_finished(run)
  measured: Measured | None = None
  with _bar(run) as bar, interruptible() as interrupted:
    while not finished:
      began = time.perf_counter()
      state, info = run_round(
        run.algorithm, step, state, run.data.train, run.draw(done + 1),
        run.keys[prng_streams.ROUNDS], done + 1,
      )  # fmt: skip
      info = processes.on_host(info)
      seconds.append(time.perf_counter() - began)
      info = derived.added_to(info, state)
      _check_finite(done + 1, info, run.algorithm.train is not None, run.checkpoints)
      done, steps = done + 1, steps + int(info.steps)
      record = records.round_record(done, info, run.data.train)
      settled = records.settled([*out.records, record], settings.patience)
      finished = done == settings.rounds or settled
      stop = processes.any_of(interrupted()) and not finished
      if finished or _due(done, settings.eval_every):
        bar.set_description('evaluating')
        measured = evaluation.measure(state, done)
        bar.set_description()
        record |= evaluation.record(measured)
      out.write(record | {'seconds': seconds[-1]})
      bar.set_postfix(records.progress(out.records, run.algorithm.local.model.task))
      bar.update()
      if run.checkpoints is not None and (
        stop or finished or _due(done, settings.checkpoint_every)
      ):
        run.checkpoints.save(done, state)
      if stop:
        raise Stopped.after(done, settings.rounds, run.folder)
  if measured is None:  # Nothing was left to do.
    measured = evaluation.measure(state, done)
    if 'deployed' not in out.records[-1]:  # Stopped here between evaluations.
      out.amend(evaluation.record(measured))
  return Finished(state, measured, seconds, steps)


def is_finished(run: Prepared) -> bool:
  """Whether no round is left."""
  settled = records.settled(run.out.records, run.settings.patience)
  return run.done == run.settings.rounds or settled


def _due(done: int, every: int) -> bool:
  """Whether something that is done every so many rounds is due; 0 is never."""
  return bool(every) and done % every == 0


def _check_finite(
  round_number: int,
  info: RoundInfo,
  penalized: bool,
  checkpoints: checkpoint.Checkpoints | None,
) -> None:
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
  saved = None if checkpoints is None else checkpoints.latest_round()
  kept = '' if saved is None else f' The checkpoint of round {saved} is kept.'
  lower = '`learning_rate`'
  if penalized:
    lower += ', or the penalty (`prox_lambda`, `prox_mu`)'
  raise Diverged(f'Round {round_number}: {what}; lower {lower}.{kept}')


def _bar(run: Prepared) -> tqdm.tqdm:
  """A progress bar; by default on terminals only."""
  shown = run.settings.progress
  hidden = None if shown is None else not shown
  return tqdm.tqdm(
    total=run.settings.rounds, initial=run.done, unit='round', disable=hidden
  )
