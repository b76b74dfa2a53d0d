"""Methods tuned and compared over seeds, on data in memory."""

import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import logging

from fesem_jax.analysis import tables, tuning
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.runs_of_methods import (
  Data,
  Outcome,
  arguments,
  check_seeds,
  given,
  outcomes_of,
  splits_of,
  tuning_runs,
)
from fesem_jax.analysis.tuning import Choice, Values, in_words
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.data import hold_out
from fesem_jax.run.results.frames import Recorded, joined
from fesem_jax.run.results.records import Record
from fesem_jax.run.spec import Workdir
from fesem_jax.utils.errors import UserError, check

# A method, or a function of hyperparameters that gives it.
Method = Algorithm | Callable[..., Algorithm]

_T = TypeVar('_T')


def run_each(
  by_label: Mapping[str, Sequence[_T]],
  run: Callable[[str], Sequence[Outcome]],
  refuse: Callable[[str, _T, UserError], None],
  after: Callable[[list[Recorded]], None],
) -> tuple[list[Recorded], dict[str, UserError]]:
  """Runs methods one after the other; one that cannot run does not stop the others.

  `by_label` has what to run of each method, e.g. seeds, and `run` gives the outcome of
  each of these. `refuse` is called for a method that cannot run, `after` with all runs
  after each method, if there are any. Returns the runs, and why methods could not run.
  """
  recorded: list[Recorded] = []
  refused: dict[str, UserError] = {}
  for label, each in by_label.items():
    try:
      outcomes = run(label)
    except UserError as e:
      outcomes = [e]
    for one, outcome in zip(each, outcomes, strict=False):
      if isinstance(outcome, UserError):
        refused[label] = outcome
        refuse(label, one, outcome)
        break
      recorded.append(outcome._replace(method=label))
    if recorded:
      after(recorded)
  return recorded, refused


def _check_methods(methods: Any) -> None:
  """Raises `UserError` unless methods have labels, and are or give an `Algorithm`."""
  for label, method in methods.items():
    if isinstance(method, Algorithm):
      continue
    makes = callable(method) and 'local' not in inspect.signature(method).parameters
    check(makes, f'methods: {label} is no Algorithm or function of hyperparameters')


def compare(
  methods: Mapping[str, Method],
  data: Data,
  *,
  rounds: int,
  seeds: Sequence[int] = range(5),
  choices: Mapping[str, Choice] | None = None,
  reference: str = '',
  oracle: str = '',
  workdir: str | os.PathLike[str] | Workdir | None = None,
  **options: Any,
) -> Comparison:
  """Runs methods with several seeds.

  Args:
    methods: label of each method -> an `Algorithm`, or a function that gives it and
      takes the hyperparameters that `choices` has for it as keyword arguments.
    data: training and test split, or a function of the seed that gives both.
    rounds: of each run.
    seeds: of the runs; methods are compared seed by seed.
    choices: see `tune`.
    reference: label of the method that others are compared with; by default that with
      the best deployed figure of the task.
    oracle: label of the oracle among `methods`; '' where there is none.
    workdir: gets the tables and, in LABEL/seedN, the runs; the same call goes on where
      it stopped. See `simulate`.
    **options: further ones of `simulate_many`, e.g. `runs_at_once`, and of `simulate`.

  Returns:
    `Comparison`. A method that cannot run is in `refused`, a run that diverged has no
    summary, and the others go on.

  Raises:
    UserError: on a reference, choice or seeds that do not fit, or if no method can run.
  """
  chosen = dict(choices or {})
  _check_methods(methods)
  check_seeds(seeds)
  tables.check_reference(reference, list(methods))
  check(not oracle or oracle in methods, f'oracle: {oracle!r} is none of methods')
  for label, choice in chosen.items():
    tunable = label in methods and not isinstance(methods[label], Algorithm)
    check(tunable, f'choices: {label} is no function in methods')
    shared = sorted(set(choice.seeds) & set(seeds))
    check(not shared, f'seeds: {label} was tuned with {shared}; choose others')
  if workdir is not None and not isinstance(workdir, Workdir):
    workdir = Workdir(workdir)
  folder = None if workdir is None else pathlib.Path(workdir.path)
  tuned = [name for choice in chosen.values() for name in choice.values]

  def of_run(label: str, seed: int) -> dict[str, Workdir]:
    if workdir is None:
      return {}
    path = pathlib.Path(workdir.path) / label / f'seed{seed}'
    return {'workdir': workdir._replace(path=path)}

  def run(label: str) -> list[Outcome]:
    method, choice = methods[label], chosen.get(label)
    values = choice.values if choice is not None else {}
    built = method if isinstance(method, Algorithm) else method(**values)
    runs = [arguments(built, splits_of(data, s), s) | of_run(label, s) for s in seeds]
    outcomes = outcomes_of(runs, {'rounds': rounds} | options)
    return [
      o if isinstance(o, UserError) else o._replace(config=values) for o in outcomes
    ]

  def compared(recorded: list[Recorded]) -> Comparison:
    frames = joined(recorded, list(methods))
    return Comparison(frames, refused, reference, oracle, tuned=tuned)

  def after(recorded: list[Recorded]) -> None:
    if folder is not None:
      compared(recorded).write(folder)

  def refuse(label: str, seed: int, error: UserError) -> None:
    logging.warning('%s, seed %d, cannot run: %s', label, seed, error)

  by_label = dict.fromkeys(methods, seeds)
  refused: dict[str, UserError] = {}
  recorded, refused = run_each(by_label, run, refuse, after)
  if len(refused) == len(methods):
    raise next(iter(refused.values()))
  return compared(recorded)


def tune(
  methods: Mapping[str, Callable[..., Algorithm]],
  data: Data,
  grid: Mapping[str, Sequence[Any]],
  *,
  rounds: int,
  seeds: Sequence[int] = range(10_000, 10_003),
  by: str = 'deployed',
  **options: Any,
) -> dict[str, Choice]:
  """Chooses hyperparameters of methods on a part of their clients' training examples.

  Every combination of the values runs with every seed on 80 % of each client's training
  examples and is measured on the others (`data.hold_out`); test examples of that seed
  are not looked at. If `data` divides the same examples anew for each seed, tuning sees
  test examples of the reported seeds. The best mean over seeds is chosen.

  Args:
    methods: label of each method -> a function of hyperparameters, by the names of
      `grid`, that gives the method; it is tuned over those that it takes.
    data: see `compare`.
    grid: name of each hyperparameter -> its values.
    rounds: of each run.
    seeds: of the runs; they must differ from those to be reported.
    by: models whose first metric decides, as micro accuracy: the
      'deployed' or the 'finetuned' ones; others are not fine-tuned.
    **options: further ones of `simulate_many`, e.g. `runs_at_once`, and of `simulate`.

  Returns:
    Label of each method that takes some of the hyperparameters -> `tuning.Choice`, for
    `compare`. Warnings name values that a method cannot run with.

  Raises:
    UserError: on a hyperparameter that no method takes, or a method that can run with
      none of the values.
  """
  _check_methods(methods)
  check_seeds(seeds)
  for name in grid:
    used = any(_takes(make, name) for make in methods.values())
    check(used, f'grid: no method takes {name}; leave it out')
  choices = {}
  splits = {seed: hold_out(splits_of(data, seed)[0], seed) for seed in seeds}
  for label, make in methods.items():
    tries = tuning.points({n: v for n, v in grid.items() if _takes(make, n)})
    if not tries:
      continue
    outcomes = tuning_runs(make, tries, seeds, splits, {'rounds': rounds} | options, by)

    def run(values: Values, seed: int, outcomes=outcomes) -> Record | None:
      return given(outcomes[tuning.in_words(values), seed])

    choices[label] = tuning.search(tries, list(seeds), run, by)
    for point, reason in choices[label].refused:
      logging.warning('%s cannot run with %s: %s', label, in_words(point), reason)
  return choices


def _takes(make: Callable[..., Algorithm], name: str) -> bool:
  """True if a function takes a keyword argument."""
  parameters = inspect.signature(make).parameters
  any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return any_name or name in parameters
