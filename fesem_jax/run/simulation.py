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

  Runs of one algorithm on data of the same shapes share their compiled programs. In a
  run over several processes (`processes.initialize`), each process calls `simulate`
  with the same arguments; only the first writes to the shared workdir.

  Args:
    algorithm: the method; its `local` is the local training.
    train: training split.
    test: test split of the same clients.
    rounds: total number of rounds, including those before a run was resumed.
    seed: seed of all random numbers.
    clients_per_round: number of clients drawn uniformly in each round, or their share
      if it is below 1; 0 is all clients. Or a `selection.Selection`.
    eval_every: rounds between evaluations; 0 evaluates after the last round only.
    eval_start: whether to also evaluate before the first round, as round 0.
    finetune_epochs: local epochs before the `finetuned` metrics; 0 repeats the
      `deployed` metrics.
    unseen: training and test split of clients that do not train, such as the second
      pair of `data.hold_out_clients`. After the last round, each client is evaluated
      with the model of lowest training loss, or by `Algorithm.unseen_models`.
    later_phases: data that replace `train` and `test` at later rounds: the phases of
      `data.load_phases` except the first. All phases need the same shapes.
    patience: ends the run of a clustered method after this many rounds in which all
      clients keep their clusters and the objective (FeSEM's Eq. 6), if measured,
      changes by less than 0.1 %; 0 disables it.
    progress: whether to show the progress.
    workdir: folder of metrics, summary, checkpoints and models, or a `Workdir` with
      what to save; None writes nothing. An unfinished run in this folder is resumed;
      a run with another seed, method, model or data is refused.
    callbacks: `Callback` objects, which watch the run and can end it.
    ignore_checks: ids of rules of `fesem_jax.checks` to skip, e.g. 'FJ101'.

  Returns:
    The `Result` of the run.

  Raises:
    UserError: if an argument is invalid, the model does not fit the data, or the
      workdir cannot be used.
    Diverged: if no client of a round has a finite update, or if the training loss or
      the objective is not finite.
    Stopped: after Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, once the round is saved.
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
  train side by side; the method is compiled once. Each result equals that of `simulate`
  within rounding, and bit for bit with `runs_at_once=1`. Runs follow one another if
  they have a method that decides on the host (`Algorithm.between`), data split by
  client or changing over rounds, states in the host's memory, shared callbacks, several
  processes or, unless `runs_at_once` asks for it, a model on a CPU that has
  convolutions or would leave its cache.

  Args:
    algorithm: the method, or a function of hyperparameters that builds it.
    runs: the arguments of each run, those of `simulate` except `algorithm`: `train`,
      `test`, `seed`, `workdir` and others; and `values`, the hyperparameters of the
      function. Runs of the same splits should share the objects.
    runs_at_once: the most runs of one program; 0 takes as many as are faster.
    keep: (place in `runs`, outcome) -> value to return for a run, called at its end.
    like: pairs of splits of other calls that are to share the compiled programs; they
      then have `runs_at_once` runs in each call.
    **options: arguments of `simulate` that all runs share, e.g. `rounds`.

  Returns:
    The outcome of each run, in the order of `runs`: its `Result`, or the `Diverged` or
    `UserError` that `simulate` raises for it.

  Raises:
    Stopped: as `simulate`.
    UserError: if `runs_at_once` is negative, or on arguments of another type.
  """
  check(runs_at_once >= 0, f'runs_at_once: must be at least 0; got {runs_at_once}')
  specs = [spec_of(algorithm=algorithm, **{**options, **run}) for run in runs]
  return run_many(specs, runs_at_once, keep, like)
