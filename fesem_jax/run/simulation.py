"""`simulate`, and `simulate_many` for many runs of one method."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.selection import Selection
from fesem_jax.data.splits import Phase
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.loop import Outcome, run_many
from fesem_jax.run.results.result import Result
from fesem_jax.run.runner import Splits
from fesem_jax.run.spec import Spec, Workdir, spec_of
from fesem_jax.utils.errors import check


def simulate(
  algorithm: Algorithm,
  train: FederatedData,
  test: FederatedData,
  *,
  rounds: int,
  seed: int = 0,
  clients_per_round: float | Selection = 0,
  eval_every: int = 1,
  eval_start: bool = False,
  finetune_epochs: int = 1,
  unseen: Splits | None = None,
  later_phases: Sequence[Phase] = (),
  patience: int = 0,
  progress: bool = True,
  workdir: str | os.PathLike[str] | Workdir | None = None,
  callbacks: Sequence[Callback] = (),
  ignore_checks: Sequence[str] = (),
) -> Result:
  """Runs an algorithm for a number of rounds.

  Several processes (`processes.initialize`) call it with the same arguments and a
  workdir that they share; the first one writes and shows the progress. Runs of one
  algorithm on data of the same shapes share their compiled programs.

  Args:
    algorithm: see `Algorithm`; its `local` is how clients train.
    train: training split.
    test: test split of the same clients.
    rounds: total number of rounds, including those before a resumption.
    seed: of all random numbers.
    clients_per_round: S, drawn uniformly; 0 is every client. Below 1 it is a share of
      the clients, rounded, at least one. Or a `selection.Selection`.
    eval_every: rounds between evaluations; 0 evaluates after the last only.
    eval_start: whether to evaluate the start too, as round 0.
    finetune_epochs: local epochs before the `finetuned` metrics; 0 repeats the
      `deployed` ones.
    unseen: training and test split of clients that take no part, as the second pair of
      `data.hold_out_clients`. They are measured after the last round, each with the
      model of its lowest training loss or as the method says; not for personal models.
    later_phases: data that begin at later rounds, as all phases of
      `data.load_phases` except the first. Shapes must be those of `train` and `test`.
    patience: ends the run after so many rounds in which no client moved and FeSEM's
      Eq. 6, if measured, changed by less than 0.1 %; 0 never does. Methods without
      clusters have no such end.
    progress: whether the progress is shown.
    workdir: where metrics, summary, checkpoints and figures go: a path, or a `Workdir`,
      which says what is saved; None writes nothing. An unfinished run of the workdir is
      resumed; one with another seed, method, model or data is refused.
    callbacks: watch the run, and may end it; see `Callback`.
    ignore_checks: ids of checks to skip, e.g. 'FJ101'.

  Returns:
    `Result`.

  Raises:
    UserError: on a bad argument, a model that does not fit the data or an unusable
      workdir.
    Diverged: when no client of a round came back with a finite update, or when
      the training loss or Eq. 6 are not finite.
    Stopped: after Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, once the round is done and saved.
  """
  return run_one(spec_of(**locals()))


def run_one(spec: Spec) -> Result:
  """The result of a run; raises what `simulate` raises."""
  outcome = run_many([spec])[0]
  if isinstance(outcome, Exception):
    raise outcome
  return outcome


def simulate_many(
  algorithm: Algorithm | Callable[..., Algorithm],
  runs: Iterable[Mapping[str, Any]],
  *,
  runs_at_once: int = 0,
  keep: Callable[[int, Outcome], Any] = lambda place, outcome: outcome,
  like: Sequence[Splits] = (),
  **options: Any,
) -> list[Any]:
  """Runs a method many times, several runs as one program.

  Runs that differ in their seeds, in the values of their data and in hyperparameters
  train side by side; the method is compiled once. Each run gives what `simulate` gives,
  equal within rounding; with `runs_at_once=1`, equal to the bit. These run one after
  the other: methods that decide on the host (`Algorithm.between`), data that are split
  by client or change over rounds, states in the host's memory, callbacks that runs have
  in common, several processes and, unless `runs_at_once` asks for it, models on a CPU
  that have convolutions or would leave its cache.

  Args:
    algorithm: the method, or a function of hyperparameters that makes it.
    runs: the arguments of each run, as of `simulate`, but for `algorithm`: `train`,
      `test`, `seed`, `workdir` and others; and `values`, the hyperparameters of a
      function. Runs of the same splits should share the objects.
    runs_at_once: the most runs of one program; 0 takes as many as are faster.
    keep: (place in `runs`, outcome) -> what is returned of a run, called once it ends.
    like: pairs of splits of other calls that are to share the compiled programs; they
      then have `runs_at_once` runs in each call.
    **options: arguments of `simulate` that all runs have in common, e.g. `rounds`.

  Returns:
    In the order of `runs`, the outcome of each: its `Result`, or the `Diverged` or
    `UserError` that `simulate` raises for it.

  Raises:
    Stopped: as `simulate`.
    UserError: if `runs_at_once` is negative, or on arguments of another type.
  """
  check(runs_at_once >= 0, f'runs_at_once: must be at least 0; got {runs_at_once}')
  specs = [spec_of(algorithm=algorithm, **{**options, **run}) for run in runs]
  return run_many(specs, runs_at_once, keep, like)
