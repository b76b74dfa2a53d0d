"""Chooses flags' values for each method on validation examples (--tune)."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fesem_jax.analysis import tuning
from fesem_jax.analysis.runs_of_methods import given
from fesem_jax.analysis.tuning import (
  KINDS,
  Choice,
  Search,
  Values,
  in_words,
  seeds_as_text,
)
from fesem_jax.run.results import files
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.errors import check as check_argument
from fesem_jax.utils.expressions import split, value

from . import flags as experiment_flags
from . import methods
from .build import HeldData
from .many_runs import Count, Wanted, run_unless_diverged

# Label of each method -> its configuration for each seed.
ByLabel = dict[str, list[dict[str, Any]]]

# They decide what is measured, or are no single values.
_NOT_TUNED = (
  'seed', 'evaluate_on', 'num_clusters',
)  # fmt: skip

# The most that --num_seeds takes, so that no --seed + n is a default tuning seed.
MOST_SEEDS = 10_000


def parse_search(
  text: str, flag: str = 'tune', own: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, list[Any]]:
  """'batch_size:5,10' -> ('batch_size', [5, 10]), a value of --tune or --sweep.

  Errors name `flag`, which has the value; `own` are options of methods of the user's
  own, with their defaults.
  """
  name, _, values = text.partition(':')
  if flag == 'sweep' and name.startswith('partition.'):
    return name, [value(part) for part in split(values, subject=flag)]
  tunable = (*experiment_flags.common(), *methods.all_options())
  if not values or name not in (*tunable, *own) or name in _NOT_TUNED:
    raise UserError(f'{flag}: {text!r} is not FLAG:VALUE,VALUE; see --help={flag}')
  parse = methods.parser_of(name, own).parse
  return name, [parse(part) for part in split(values, subject=flag)]


def parse(
  texts: Iterable[str],
  by: str,
  count: int,
  reported: range,
  own: Mapping[str, Any] = MappingProxyType({}),
) -> Search | None:
  """The search that --tune, --tune_by and --tune_seeds ask for.

  None without --tune. Of two searches of one flag, the later counts, and an empty text
  drops those before it, e.g. of a preset. Tuning seeds may not be among the reported
  ones. `own` is that of `parse_search`.
  """
  grid: dict[str, list[Any]] = {}
  for text in texts:
    grid = grid | dict([parse_search(text, own=own)]) if text else {}
  if not grid:
    return None
  start = reported.start + MOST_SEEDS
  seeds = range(start, start + count)
  return Search(grid, list(seeds), by)


def points(
  label: str, config: dict[str, Any], grid: Mapping[str, Sequence[Any]]
) -> list[Values]:
  """The points of a grid that a method is tried with; what its label sets stays."""
  has = config
  own = {n: v for n, v in grid.items() if n in has and not methods.sets(label, n)}
  return tuning.points(own, lambda values, n: methods.applies(config | values, n))


def number_of_runs(by_label: ByLabel, search: Search | None) -> int:
  """How many runs a search makes."""
  if search is None:
    return 0
  tries = (points(label, c[0], search.grid) for label, c in by_label.items())
  return len(search.seeds) * sum(map(len, tries))


def tuned(
  by_label: ByLabel,
  search: Search,
  workdir: pathlib.Path,
  count: Count | None = None,
  held: HeldData | None = None,
) -> dict[str, Choice | UserError]:
  """Searches each method's values on validation examples.

  Runs go to workdir/tune/, the figures behind each choice to workdir/tune.json. Returns
  the label of each method that has flags to be tuned -> its choice, or why it cannot
  run.
  """
  tries = {
    label: points(label, configs[0], search.grid) for label, configs in by_label.items()
  }
  for name in search.grid:
    used = any(name in point for each in tries.values() for point in each)
    check_argument(used, f'tune: {name} applies to none of algorithms')
  choices: dict[str, Choice | UserError] = {}
  for label, configs in by_label.items():
    if not tries[label]:
      continue
    try:
      run = _runner(label, configs, tries[label], search, workdir, count, held)
      choices[label] = tuning.search(tries[label], search.seeds, run, search.by)
    except UserError as e:
      choices[label] = e
    print(_described(label, choices[label]))
    _write(choices, workdir)
  return choices


def configurations(
  label: str, config: dict[str, Any], search: Search | None
) -> list[dict[str, Any]]:
  """The configurations of a method's tuning runs; none without --tune."""
  tuning = {'evaluate_on': 'validation', 'eval_every': 0}
  if 'stop_after' in config:  # All rounds are run here, and only the last measured.
    tuning['stop_after'] = 0
  if search is None:
    return []
  tries = points(label, config, search.grid)
  return [config | v | tuning | {'seed': seed} for v in tries for seed in search.seeds]


def _runner(
  label: str,
  configs: list[dict[str, Any]],
  tries: list[Values],
  search: Search,
  workdir: pathlib.Path,
  count: Count | None,
  held: HeldData | None,
) -> Callable[[Values, int], dict[str, Any] | None]:
  """Makes the tuning runs of a method; (point, seed) -> the summary of one of them."""
  folder = workdir / 'tune' / methods.folder_of(label)
  names = [(in_words(values), seed) for values in tries for seed in search.seeds]
  tuning_runs = zip(names, configurations(label, configs[0], search), strict=True)
  wanted = [
    Wanted(
      config,
      folder / point.replace('/', '_') / f'seed{seed}',
      f'tuning {label}, run {number} of {len(names)}: {point}, seed {seed}',
    )
    for number, ((point, seed), config) in enumerate(tuning_runs, start=1)
  ]
  other_flags = {'target': [], 'report': 'last', 'save_models': False}
  ended = run_unless_diverged(
    wanted, about=f'tuning {label}', count=count, printed=set[str](), held=held,
    other_flags=other_flags, tuned=tuple(search.grid), like=configs,
    at_once=len(configs),
  )  # fmt: skip
  outcomes = dict(zip(names, ended, strict=True))
  return lambda values, seed: given(outcomes[in_words(values), seed])


def _described(label: str, choice: Choice | UserError) -> str:
  """Text printed of one method's search."""
  if isinstance(choice, UserError):
    return f'{label} cannot be tuned: {choice}'
  if not choice.values:
    return f'{label}: diverged with every {", ".join(choice.grid)}'
  by = f'by {KINDS[choice.by]} micro {choice.figure.label} on validation examples'
  seeds = seeds_as_text(choice.seeds)
  return f'{label}: {in_words(choice.values)}, {by}, seeds {seeds}'


def check(choices: dict[str, Choice | UserError]) -> None:
  """Raises `UserError` if a method could not be tuned."""
  for label, choice in choices.items():
    if isinstance(choice, UserError):
      raise UserError(f'{label} cannot be tuned: {choice}') from choice


def applied(by_label: ByLabel, choices: dict[str, Choice | UserError]) -> ByLabel:
  """The configurations with the chosen values."""
  values = {la: c.values for la, c in choices.items() if isinstance(c, Choice)}
  return {
    label: [config | values.get(label, {}) for config in configs]
    for label, configs in by_label.items()
  }


def _write(choices: dict[str, Choice | UserError], workdir: pathlib.Path) -> None:
  """Writes tune.json: of each method, the choice and the figures behind it.

  Methods of earlier commands stay.
  """
  earlier = files.read_object(workdir / 'tune.json') or {}
  held = {label: x for label, x in earlier.items() if label not in choices} | {
    label: {
      'chosen': choice.values,
      'at_edge': choice.at_edge,
      'by': choice.by,
      'seeds': choice.seeds,
      'runs': choice.runs,
      'tried': [
        {
          'values': trial.values,
          f'validation_micro_{choice.figure.name}': trial.mean,
          'of_seeds': trial.scores,
        }
        for trial in choice.tried
      ],
    }
    for label, choice in choices.items()
    if isinstance(choice, Choice)
  }
  write_atomically(workdir / 'tune.json', json.dumps(held, indent=1) + '\n')
