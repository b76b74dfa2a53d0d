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
  Method,
  Outcome,
  Splits,
  arguments,
  check_seeds,
  given,
  outcomes_of,
  splits_of,
  tuning_runs,
)
from fesem_jax.analysis.tuning import Choice, Search, Values, in_words
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.data import hold_out
from fesem_jax.run.results.frames import Recorded, joined
from fesem_jax.run.results.records import Record
from fesem_jax.run.spec import Workdir
from fesem_jax.utils.errors import UserError, check

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
  choices: Mapping[str, Choice] | Search | None = None,
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
    choices: from `tune`; or a `Search`, by which each method is tuned first, in the
      same compiled programs.
    reference: label of the method that others are compared with; by default that with
      the best deployed figure of the task.
    oracle: label of the oracle among `methods`; '' where there is none.
    workdir: gets the tables and, in LABEL/seedN, the runs; the same call goes on where
      it stopped. See `simulate`. Portraits are of the first seed.
    **options: further ones of `simulate_many`, e.g. `runs_at_once`, and of `simulate`.

  Returns:
    `Comparison`. A method that cannot run is in `refused`, a run that diverged has no
    summary, and the others go on.

  Raises:
    UserError: on a reference, choice or seeds that do not fit, or if no method can run.
  """
  search = choices if isinstance(choices, Search) else None
  chosen = {} if search or choices is None else dict(choices)  # type: ignore[arg-type]
  _check_methods(methods)
  check_seeds(seeds)
  tables.check_reference(reference, list(methods))
  check(not oracle or oracle in methods, f'oracle: {oracle!r} is none of methods')
  for label in chosen:
    tunable = label in methods and not isinstance(methods[label], Algorithm)
    check(tunable, f'choices: {label} is no function in methods')
  searched = [c.seeds for c in chosen.values()] + ([search.seeds] if search else [])
  shared = sorted({seed for each in searched for seed in each} & set(seeds))
  check(not shared, f'seeds: methods are tuned with {shared}; choose others')
  if workdir is not None and not isinstance(workdir, Workdir):
    workdir = Workdir(workdir)
  folder = None if workdir is None else pathlib.Path(workdir.path)
  splits = {seed: splits_of(data, seed) for seed in seeds}
  common, like = {'rounds': rounds} | options, list[Splits]()
  held_out = dict[int, Splits]()
  if search is not None:
    _check_grid(methods, search)
    held_out = _held_out(data, search.seeds)
    if not options.get('runs_at_once'):
      like = [*splits.values(), *held_out.values()]
      common['runs_at_once'] = len(seeds)

  def of_run(label: str, seed: int) -> dict[str, Any]:
    if workdir is None:
      return {}
    path = pathlib.Path(workdir.path) / label / f'seed{seed}'
    portrait = workdir.portrait and seed == seeds[0]
    return {'workdir': workdir._replace(path=path, portrait=portrait)}

  def run(label: str) -> list[Outcome]:
    method = methods[label]
    shapes = like if _tries(method, search) else []
    if search is not None and _tries(method, search):
      chosen[label] = _choice(label, method, search, held_out, common, shapes)
    values = chosen[label].values if label in chosen else {}
    runs = [arguments(splits[s], s, values) | of_run(label, s) for s in seeds]
    alone = common if shapes else {'rounds': rounds} | options
    outcomes = outcomes_of(method, runs, alone, shapes)
    return [
      o if isinstance(o, UserError) else o._replace(config=values) for o in outcomes
    ]

  def compared(recorded: list[Recorded]) -> Comparison:
    frames = joined(recorded, list(methods))
    tuned = [name for choice in chosen.values() for name in choice.values]
    return Comparison(frames, refused, reference, oracle, tuned=tuned)

  def after(recorded: list[Recorded]) -> None:
    if folder is not None:
      compared(recorded).write(folder)

  def refuse(label: str, seed: int, error: UserError) -> None:
    logging.warning('%s, seed %d, cannot run: %s', label, seed, error)

  refused: dict[str, UserError] = {}
  recorded, refused = run_each(dict.fromkeys(methods, seeds), run, refuse, after)
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
  search = Search(grid, seeds, by)
  _check_methods(methods)
  check_seeds(seeds)
  _check_grid(methods, search)
  splits, common = _held_out(data, seeds), {'rounds': rounds} | options
  return {
    label: _choice(label, make, search, splits, common)
    for label, make in methods.items()
    if _tries(make, search)
  }


def _choice(
  label: str,
  make: Any,
  search: Search,
  splits: Mapping[int, Splits],
  options: dict[str, Any],
  like: Sequence[Splits] = (),
) -> Choice:
  """The hyperparameters of one method; for `like`, see `simulate_many`."""
  tries = _tries(make, search)
  args = make, tries, search.seeds, splits, options, search.by, like
  outcomes = tuning_runs(*args)

  def run(values: Values, seed: int) -> Record | None:
    return given(outcomes[tuning.in_words(values), seed])

  choice = tuning.search(tries, list(search.seeds), run, search.by)
  for point, reason in choice.refused:
    logging.warning('%s cannot run with %s: %s', label, in_words(point), reason)
  return choice


def _held_out(data: Data, seeds: Sequence[int]) -> dict[int, Splits]:
  return {seed: hold_out(splits_of(data, seed)[0], seed) for seed in seeds}


def _check_grid(methods: Mapping[str, Method], search: Search) -> None:
  """Raises `UserError` on a hyperparameter that no method takes."""
  for name in search.grid:
    used = any(_takes(make, name) for make in methods.values())
    check(used, f'grid: no method takes {name}; leave it out')


def _tries(method: Method, search: Search | None) -> list[Values]:
  """The points that a method is tried with."""
  grid = search.grid if search else {}
  return tuning.points({n: v for n, v in grid.items() if _takes(method, n)})


def _takes(make: Method, name: str) -> bool:
  """True if a method is a function that takes a keyword argument."""
  if isinstance(make, Algorithm):
    return False
  parameters = inspect.signature(make).parameters
  any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return any_name or name in parameters
