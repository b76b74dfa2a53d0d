"""Methods of a comparison, as flags name them: their runs, tuning and sweeps."""

import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fesem_jax import partitions
from fesem_jax.analysis import tuning
from fesem_jax.analysis.loop import Entry, Planned
from fesem_jax.analysis.tuning import Search, Values
from fesem_jax.data.expressions import split, value
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import check

from . import flags as experiment_flags
from . import methods, specs
from .build import LoadedData

# Label of each method -> its configuration, with the first seed.
Configurations = dict[str, dict[str, Any]]

# They decide what is measured, or are no single values.
_NOT_TUNED = 'seed', 'evaluate_on', 'num_clusters'

# The most that --num_seeds takes, so that no --seed + n is a default tuning seed.
MOST_SEEDS = 10_000

# How tuning runs differ from those that are reported, and what they write.
_TUNING = {'evaluate_on': 'validation', 'eval_every': 0, 'stop_after': 0}
_TUNING |= {'eval_start': False}
_TUNING_OUTPUT = {'target': [], 'save_models': False}


def configurations(
  listed: Iterable[str], chosen: Mapping[str, Any], oracle: bool = False
) -> Configurations:
  """The configurations of a comparison, by the names and in the order of `listed`.

  `chosen` are options of the command line, for the methods that have them.
  """
  parsed = []
  for text in listed:
    label, called = methods.split_label(text)
    parsed.append((label or called.strip(), *methods.parse_method(called)))
  if oracle and 'oracle' not in (name for _, name, _ in parsed):
    parsed.append(('oracle', 'oracle', {}))
  for option in chosen:
    used = any(option in methods.options(name) for _, name, _ in parsed)
    check(used, f'{option}: does not apply to any of algorithms; leave it out')
  configs: Configurations = {}
  for label, name, values in parsed:
    options = {
      option: x
      for option, x in {**chosen, **values}.items()
      if option in methods.options(name)
    }
    config = experiment_flags.configuration(name, options) | values
    twice = label in configs or config in configs.values()
    check(not twice, f'algorithms: {label} is listed twice')
    configs[label] = config
  return configs


def parse_values(
  text: str, flag: str = 'tune', personal: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, list[Any]]:
  """'batch_size:5,10' -> ('batch_size', [5, 10]), a value of --tune or --sweep."""
  name, _, values = text.partition(':')
  if flag == 'sweep' and name.startswith('partition.'):
    return name, [value(part) for part in split(values, subject=flag)]
  names = (*experiment_flags.common(), *methods.all_options(), *personal)
  fits = values and name in names and name not in _NOT_TUNED
  check(fits, f'{flag}: {text!r} is not FLAG:VALUE,VALUE; see --help={flag}')
  parse = methods.parser_of(name, personal).parse
  return name, [parse(part) for part in split(values, subject=flag)]


def parse_search(
  texts: Iterable[str], configs: Configurations, seeds: range, by: str = 'deployed'
) -> Search | None:
  """The search that values of --tune ask for; an empty one drops those before it."""
  personal = methods.user_options(c['algorithm'] for c in configs.values())
  grid: dict[str, list[Any]] = {}
  for text in texts:
    grid = grid | dict([parse_values(text, personal=personal)]) if text else {}
  tried = [p for label, config in configs.items() for p in points(label, config, grid)]
  for name in grid:
    used = any(name in point for point in tried)
    check(used, f'tune: {name} applies to none of algorithms')
  first = next(iter(configs.values()))['seed'] + MOST_SEEDS
  return Search(grid, [first + seed for seed in seeds], by) if grid else None


def points(
  label: str, config: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]
) -> list[Values]:
  open_values = {
    name: values
    for name, values in grid.items()
    if name in config and not methods.sets(label, name)
  }

  def applies(values: Values, name: str) -> bool:
    return methods.applies({**config, **values}, name)

  return tuning.points(open_values, applies)


def swept(text: str, configs: Configurations) -> Configurations:
  """The methods at each value of --sweep, which labels have, too."""
  name, values = parse_values(text, 'sweep')
  field = name.removeprefix('partition.') if name.startswith('partition.') else ''
  flag = 'partition' if field else name
  varied: Configurations = {}
  for label, config in configs.items():
    varies = flag in config and not methods.sets(label, flag)
    for x in values if varies else ():
      changed = {flag: x}
      if field:
        changed = {flag: str(partitions.replace(config[flag], field, x))}
      elif name == 'partition' and x:
        changed = {flag: str(partitions.parse(x))}
      elif name == 'attack_fraction' and not x:
        changed['attack'] = ''
      begin = f'{label[:-1]};' if label.endswith(')') else f'{label}('
      varied[f'{begin}{name}={text_of(x)})'] = config | changed
    if not varies:
      varied[label] = config
  check(varied.keys() != configs.keys(), f'sweep: {name} applies to none of algorithms')
  return varied


def entries(
  configs: Configurations, workdir: pathlib.Path, search: Search | None = None
) -> dict[str, Entry]:
  """How the methods run, in WORKDIR/LABEL/seedN; the first run says what it is."""
  loaded, machine, printed = LoadedData(), experiment_flags.machine(), list[str]()

  def say(text: str) -> None:
    name, on, data = text.partition(' on ')
    if machine['verbose'] or not printed:
      several = len(configs) > 1 and on and not machine['verbose']
      print(f'{len(configs)} methods' if several else name, data, sep=on)
    printed.append(text)

  def planned(label: str, values: Values, seed: int, is_tuning: bool) -> Planned:
    first = configs[label]
    config = first | values | {'seed': seed}
    folder, output = workdir / methods.folder_of(label), machine
    if is_tuning:
      config |= {name: x for name, x in _TUNING.items() if name in config}
      point = tuning.in_words(values).replace('/', '_')
      folder = workdir / 'tune' / folder.name / point
      output = machine | _TUNING_OUTPUT
    return specs.plan(
      config, output, folder / f'seed{seed}', loaded=loaded, say=say,
      tuned=tuple(search.grid) if search else (),
      make_portrait=seed == first['seed'],
    )  # fmt: skip

  grid = search.grid if search else {}
  return {
    label: Entry(functools.partial(planned, label), points(label, config, grid))
    for label, config in configs.items()
  }
