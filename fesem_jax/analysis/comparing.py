"""Methods tuned and compared over seeds, on data in memory."""

import functools
import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fesem_jax.analysis import tuning
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.loop import Entry, Planned, run_entries
from fesem_jax.analysis.tuning import Search, Values
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.data import hold_out
from fesem_jax.run.runner import Splits
from fesem_jax.run.spec import Workdir, spec_of
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

# A method, or a function of hyperparameters that gives it.
Method = Algorithm | Callable[..., Algorithm]

# Training and test split; or a function of the seed that gives them.
Data = Splits | Callable[[int], Splits]


def compare(
  methods: Mapping[str, Method],
  data: Data,
  *,
  rounds: int,
  seeds: Sequence[int] = range(5),
  search: Search | None = None,
  reference: str = '',
  oracle: str = '',
  workdir: str | os.PathLike[str] | Workdir | None = None,
  runs_at_once: int = 0,
  **options: Any,
) -> Comparison:
  """Runs methods with several seeds, each of them tuned first if there is a search.

  Tuning runs every combination of the values that a method takes, with every seed of
  the search, on 80 % of each client's training examples, and measures it on the others
  (`data.hold_out`). The best mean over seeds is chosen. If `data` divides the same
  examples anew for each seed, these are test examples of other seeds.

  Args:
    methods: label of each method -> an `Algorithm`, or a function that gives it and
      takes the hyperparameters of the search as keyword arguments.
    data: training and test split, or a function of the seed that gives both.
    rounds: of each run.
    seeds: of the runs; methods are compared seed by seed. Without any, methods are only
      tuned.
    search: by which each method is tuned first, in the same compiled programs.
    reference: label of the method that others are compared with; by default that with
      the best deployed metric of the task.
    oracle: label of the oracle among `methods`; '' where there is none.
    workdir: gets the tables and, in LABEL/seedN, the runs; the same call continues
      where it stopped, and the table has all runs of the folder. See `simulate`.
      Portraits are of the first seed.
    runs_at_once: the most runs of one program; see `simulate_many`.
    **options: further ones of `simulate`.

  Returns:
    `Comparison`. A method that cannot run is in `refused`, a run that diverged has no
    summary, and the others continue. `choices` has a `tuning.Choice` for each method
    that was tuned.

  Raises:
    UserError: on a reference, search or seeds that do not fit, or if no method can run.
  """
  check_choice('reference', reference, (*methods, ''))
  check_choice('oracle', oracle, (*methods, ''))
  shared = sorted(set(search.seeds if search else ()) & set(seeds))
  check(not shared, f'seeds: methods are tuned with {shared}; choose others')
  if workdir is not None and not isinstance(workdir, Workdir):
    workdir = Workdir(workdir)
  folder = None if workdir is None else pathlib.Path(workdir.path)

  def folder_of(label: str, seed: int) -> Workdir | None:
    if workdir is None:
      return None
    path = pathlib.Path(workdir.path) / label.replace('/', '_') / f'seed{seed}'
    return workdir._replace(path=path, portrait=workdir.portrait and seed == seeds[0])

  entries = _entries(methods, data, seeds, search, folder_of, rounds=rounds, **options)
  return run_entries(
    entries, seeds, search, folder=folder, runs_at_once=runs_at_once,
    reference=reference, oracle=oracle,
  )  # fmt: skip


def _entries(
  methods: Mapping[str, Method],
  data: Data,
  seeds: Sequence[int],
  search: Search | None,
  folder_of: Callable[[str, int], Workdir | None],
  **options: Any,
) -> dict[str, Entry]:
  """How methods run; `folder_of` gives the workdir of a label and a seed."""
  tuning_seeds = search.seeds if search else ()
  for listed in (seeds, tuning_seeds):
    check(len(set(listed)) == len(listed), 'seeds: one is named twice; give each once')
  grid = search.grid if search else {}
  for name in grid:
    used = any(_takes(make, name) for make in methods.values())
    check(used, f'grid: no method takes {name}; leave it out')

  @functools.cache
  def splits(seed: int, is_tuning: bool) -> Splits:
    pair = data(seed) if callable(data) else data
    return hold_out(pair[0], seed) if is_tuning else pair

  def plan(label: str, values: Values, seed: int, is_tuning: bool) -> Planned:
    train, test = splits(seed, is_tuning)
    chosen = {'eval_every': 0} | options if is_tuning else options
    workdir = None if is_tuning else folder_of(label, seed)
    spec = spec_of(
      algorithm=methods[label], train=train, test=test, seed=seed, values=values,
      workdir=workdir, **chosen,
    )  # fmt: skip
    return Planned(spec)

  def points(method: Method) -> list[Values]:
    return tuning.points({n: v for n, v in grid.items() if _takes(method, n)})

  return {
    label: Entry(functools.partial(plan, label), points(method))
    for label, method in methods.items()
  }


def _takes(make: Method, name: str) -> bool:
  """True if a method is a function that takes a keyword argument."""
  if isinstance(make, Algorithm) or name in getattr(make, 'keywords', ()):
    return False
  parameters = inspect.signature(make).parameters
  any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return any_name or name in parameters
