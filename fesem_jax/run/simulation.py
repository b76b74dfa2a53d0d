"""A run of an algorithm, from its arguments to its result."""

import contextlib
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.calls import Callbacks
from fesem_jax.cohorts.selection import Selection, counted
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.phases import Phase
from fesem_jax.results.result import Result
from fesem_jax.run.ending import finish, read_finished
from fesem_jax.run.loop import Alone, Running, run_rounds
from fesem_jax.run.preparation import placed, prepare, start
from fesem_jax.run.programs import CompileTime, Programs, shared
from fesem_jax.run.settings import Settings
from fesem_jax.run.watching import begin
from fesem_jax.utils import processes, progress_lines


def simulate(
  algorithm: Algorithm,
  train: FederatedData,
  test: FederatedData,
  *,
  rounds: int,
  seed: int = 0,
  clients_per_round: int | Selection = 0,
  eval_every: int = 1,
  finetune_epochs: int = 1,
  patience: int = 0,
  workdir: str | pathlib.Path | None = None,
  config: dict[str, Any] | None = None,
  checkpoint_every: int = 10,
  resume: bool = True,
  make_portrait: bool = True,
  save_models: bool | None = None,
  progress: bool | None = None,
  programs: Programs | None = None,
  unseen: tuple[FederatedData, FederatedData] | None = None,
  notes: Sequence[str] = (),
  data_placement: str = 'auto',
  later_phases: Sequence[Phase] = (),
  callbacks: Sequence[Callback] = (),
) -> Result:
  """Runs an algorithm for a number of rounds.

  Several processes (`processes.initialize`) call it alike, on the same data and with a
  workdir that they share; the first one writes and shows the progress.

  Args:
    algorithm: see `Algorithm`; its `local` is how clients train.
    train: training split.
    test: test split of the same clients.
    rounds: total number of rounds, including those before a resumption.
    seed: of all random numbers.
    clients_per_round: S, drawn alike; 0 is every client. Or a `selection.Selection`.
    eval_every: rounds between evaluations; 0 evaluates after the last only.
    finetune_epochs: local epochs before the `finetuned` figures; 0 repeats the
      `deployed` ones.
    patience: stops after this many rounds in which no client moved and Eq. 6, if it is
      measured, changed by less than 0.1 %; 0, for methods without clusters, never.
    workdir: where metrics, summary, checkpoints and the portrait go; None
      writes nothing.
    config: identifies the run; a workdir with a different one is an error. By
      default the seed and a digest of the compiled programs, which hold the
      method, its options, the model and the shapes of the data.
    checkpoint_every: rounds between checkpoints; 0 saves after the last only.
    resume: whether to continue the run that the workdir holds.
    make_portrait: describe the clients for the figures after the last round.
    save_models: whether the workdir gets the deployed models for `load_run`: all
      centers, or every client's own. None saves up to 1 GiB.
    progress: None shows live lines on a terminal, and elsewhere lines for slow steps
      only; True shows lines for all steps there; False shows nothing.
    programs: compiled by earlier runs of the same algorithm, e.g. with other seeds;
      by default those of this process, so that a second run of an algorithm on data of
      the same shapes compiles nothing. `programs.Programs()` keeps a run apart.
    unseen: training and test split of clients that take no part, for evaluation after
      the last round; see `evaluate.models_of_unseen`.
    notes: sentences about the method that the summary keeps; see `algorithms.notes`.
    data_placement: where examples are, see `placement.chosen`: 'replicated' on every
      device, 'sharded' by client, or 'auto'.
    later_phases: splits that replace `train` and `test` from later rounds on, from
      `data.load_phases`; only their values may differ.
    callbacks: watch the run, and may end it; see `Callback`.

  Returns:
    `Result`.

  Raises:
    UserError: on a bad argument, a model that does not fit the data or an unusable
      workdir.
    Diverged: when no client of a round came back with a finite update, or when
      the training loss or Eq. 6 are not finite.
    Stopped: after Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, once the round is done and saved.
  """
  began = time.perf_counter()
  folder = None if workdir is None else pathlib.Path(workdir)
  told = Callbacks(callbacks)
  count, selection = counted(clients_per_round)
  settings = Settings(
    rounds, seed, count, eval_every, finetune_epochs, patience, checkpoint_every,
    resume, make_portrait, save_models, progress if processes.is_first() else False,
    data_placement, told.wants_clients, selection,
  )  # fmt: skip
  programs = programs or shared()
  phases = _changed(algorithm, [Phase(1, train, test), *later_phases], unseen)
  with contextlib.ExitStack() as opened:
    opened.enter_context(progress_lines.shown(settings.progress))
    compiling = opened.enter_context(CompileTime())
    timeline = placed(algorithm, phases, unseen, settings, programs)
    run = prepare(algorithm, timeline, settings, folder, config, programs, opened)
    run = start(run, opened)._replace(notes=[*notes, *run.notes])
    reason = begin(run, opened.enter_context(told), test)
    held = read_finished(run, reason, told) if reason else None
    if held is not None:
      return held
    running = Running(run, told, reason)
    run_rounds([running], Alone(run))
    return finish(running, compiling.seconds, began)


def _changed(
  algorithm: Algorithm,
  phases: list[Phase],
  unseen: tuple[FederatedData, FederatedData] | None,
) -> list[Phase]:
  """Phases whose training splits are as the method changes them."""
  # `check` refuses what is no Algorithm.
  of_data = getattr(algorithm, 'of_data', None)
  if of_data is None:
    return phases
  others = unseen[0].info.names if unseen else ()
  return [p._replace(train=of_data(p.train, others)) for p in phases]
