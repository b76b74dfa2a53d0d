"""Runs of algorithms, as users ask for them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.selection import Selection
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.many import run_many
from fesem_jax.run.one_run import run_one
from fesem_jax.run.results.result import Result
from fesem_jax.run.run_request import Outcome
from fesem_jax.run.spec import Workdir, spec_of


def simulate(
  algorithm: Algorithm,
  train: FederatedData,
  test: FederatedData,
  *,
  rounds: int,
  seed: int = 0,
  clients_per_round: float | Selection = 0,
  eval_every: int = 1,
  finetune_epochs: int = 1,
  workdir: str | os.PathLike[str] | Workdir | None = None,
  callbacks: Sequence[Callback] = (),
  ignore_checks: Sequence[str] = (),
) -> Result:
  """Runs an algorithm for a number of rounds.

  Several processes (`processes.initialize`) call it alike, on the same data and with a
  workdir that they share; the first one writes and shows the progress. Runs of one
  algorithm on data of the same shapes share their compiled programs.

  Args:
    algorithm: see `Algorithm`; its `local` is how clients train.
    train: training split.
    test: test split of the same clients.
    rounds: total number of rounds, including those before a resumption.
    seed: of all random numbers.
    clients_per_round: S, drawn alike; 0 is every client. Below 1 it is a share of the
      clients, rounded, at least one. Or a `selection.Selection`.
    eval_every: rounds between evaluations; 0 evaluates after the last only.
    finetune_epochs: local epochs before the `finetuned` figures; 0 repeats the
      `deployed` ones.
    workdir: where metrics, summary, checkpoints and figures go: a path, or a `Workdir`,
      which says what is kept there; None writes nothing. A run goes on where the one
      that the workdir holds has stopped; one with another seed, method, model or data
      is refused.
    callbacks: watch the run, and may end it; see `Callback`. Some are options of the
      run: `callbacks.Patience`, `Progress`, `Unseen` and `Drift`.
    ignore_checks: ids of checks that say nothing, e.g. 'FJ101'.

  Returns:
    `Result`.

  Raises:
    UserError: on a bad argument, a model that does not fit the data or an unusable
      workdir.
    Diverged: when no client of a round came back with a finite update, or when
      the training loss or Eq. 6 are not finite.
    Stopped: after Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, once the round is done and saved.
  """
  return run_one(
    spec_of(
      algorithm=algorithm,
      train=train,
      test=test,
      rounds=rounds,
      seed=seed,
      clients_per_round=clients_per_round,
      eval_every=eval_every,
      finetune_epochs=finetune_epochs,
      workdir=workdir,
      callbacks=callbacks,
      ignore_checks=ignore_checks,
    )
  )


def simulate_many(
  runs: Iterable[Mapping[str, Any]],
  *,
  runs_at_once: int = 0,
  keep: Callable[[int, Outcome], Any] = lambda place, outcome: outcome,
  **options: Any,
) -> list[Any]:
  """Runs an algorithm many times, several runs as one program.

  Runs that differ in their seeds, in the values of their data and in hyperparameters
  (`variable`) train side by side; other differences make programs of their own. Each
  run gives what `simulate` gives, also its workdir and its callbacks, equal within
  rounding; with `runs_at_once=1`, equal to the bit. Run one after the other are methods
  that decide on the host (`Algorithm.between`), data that are split by client or change
  over rounds, states in the host's memory, callbacks that runs have in common, several
  processes and, unless `runs_at_once` asks for it, models on a CPU that have
  convolutions or would leave its cache.

  A workdir that holds a run already is continued as `simulate` does. Ctrl-C saves the
  runs after a round; a process that dies loses those that are not finished.

  Args:
    runs: the arguments of each run, as of `simulate`: `algorithm`, `train`, `test`,
      `seed`, `workdir` and others. Runs of the same splits should share the objects.
    runs_at_once: the most runs of one program; 0 takes as many as are faster and fit
      into a quarter of the memory.
    keep: (place in `runs`, outcome) -> what is returned of a run, called as soon as it
      is over, so that what is not needed of it leaves the memory.
    **options: arguments of `simulate` that all runs have in common, e.g. `rounds`.

  Returns:
    In the order of `runs`, the outcome of each: its `Result`, or the `Diverged` or
    `UserError` that `simulate` raises for it.

  Raises:
    Stopped: as `simulate`.
    UserError: if `runs_at_once` is negative, or on arguments of another type.
  """
  specs = [spec_of(**{**options, **run}) for run in runs]
  return run_many(specs, runs_at_once=runs_at_once, keep=keep)
