"""Values of flags to choose from or to compare: --tune and --sweep."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fesem_jax import partitions
from fesem_jax.analysis import tuning
from fesem_jax.analysis.tuning import Search, Values
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.expressions import split, value

from . import flags as experiment_flags
from . import methods

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


def check_grid(by_label: ByLabel, search: Search | None) -> None:
  """Raises `UserError` on a flag of a search that no method leaves open."""
  grid = search.grid if search else {}
  tries = [p for label, each in by_label.items() for p in points(label, each[0], grid)]
  for name in grid:
    used = any(name in point for point in tries)
    check(used, f'tune: {name} applies to none of algorithms')


def swept(text: str, by_label: ByLabel) -> ByLabel:
  """The methods at each value of --sweep, FLAG:VALUES or partition.FIELD:VALUES.

  Labels have the value. A method without the flag, or that sets it in its label, stays
  as it is.
  """
  name, values = parse_search(text, 'sweep')
  flag, _, field = name.partition('.')
  made: ByLabel = {}
  for label, configs in by_label.items():
    if flag not in configs[0] or methods.sets(label, flag):
      made[label] = configs
      continue
    before = configs[0][flag]
    for x in values:
      changed = {flag: str(partitions.replace(before, field, x)) if field else x}
      if name == 'partition' and x:
        changed = {flag: str(partitions.parse(x))}
      if name == 'attack_fraction' and not x:
        changed |= {'attack': ''}
      made[_label(label, name, x)] = [config | changed for config in configs]
  return made


def _label(method: str, flag: str, x: Any) -> str:
  """'fesem(4)' -> 'fesem(4;flag=value)'."""
  begin = f'{method[:-1]};' if method.endswith(')') else f'{method}('
  return f'{begin}{flag}={text_of(x)})'
