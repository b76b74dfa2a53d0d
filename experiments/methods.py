"""Methods as the binaries name them: their options, and NAME(K;FLAG=VALUE)."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from fesem_jax import algorithms
from fesem_jax.errors import UserError, check_choice
from fesem_jax.local_sgd import LocalTraining
from fesem_jax.method import Algorithm

# Flags of local training that NAME(K;FLAG=VALUE) may set beside the method's options.
_TRAINING_FLAGS = (
  'learning_rate', 'optimizer', 'batch_size', 'local_epochs', 'local_steps',
  'finetune_epochs', 'rounds',
)  # fmt: skip


def options(name: str) -> dict[str, Any]:
  """The flags that are options of a method, with the method's defaults."""
  return algorithms.options(name)


def all_options() -> list[str]:
  """Names of all options that some method has."""
  return list(dict.fromkeys(o for name in algorithms.METHODS for o in options(name)))


def check_options(name: str, chosen: Mapping[str, Any]) -> None:
  """Raises `UserError` on an unknown method or an option it does not have."""
  algorithms.check_options(name, chosen)


def build(name: str, local: LocalTraining, chosen: Mapping[str, Any]) -> Algorithm:
  """Builds a method.

  Args:
    name: of the method.
    local: how clients train.
    chosen: values of some of `options(name)`; the others keep their defaults.

  Raises:
    UserError: on an unknown method, or an option it does not have or allow.
  """
  return algorithms.build(name, local, **chosen)


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
  """'fesem(4;learning_rate=1)' -> ('fesem', {'num_clusters': 4, 'learning_rate': 1.0}).

  Raises:
    UserError: on anything that is not NAME, NAME(K) or NAME(K;FLAG=VALUE;...).
  """
  match = re.fullmatch(r'\s*(\w+)\s*(?:\(([^()]*)\))?\s*', text)
  malformed = UserError(
    f'--algorithms: {text!r} is not NAME, NAME(K) or NAME(K;FLAG=VALUE), such as '
    'fesem(4) or fesem(4;learning_rate=0.1).'
  )
  if match is None:
    raise malformed
  name, inside = match.groups()
  check_choice('algorithms', name, tuple(algorithms.METHODS))
  chosen: dict[str, Any] = {}
  for part in inside.split(';') if inside else []:
    flag, equals, value = map(str.strip, part.partition('='))
    if not equals and not flag.isdecimal():
      raise malformed
    if not equals:
      flag, value = 'num_clusters', flag
    if flag in chosen:
      raise UserError(f'--algorithms: {text!r} sets {flag} twice.')
    if flag not in _TRAINING_FLAGS:
      check_options(name, {flag: value})
    try:
      chosen[flag] = _parser(flag)(value)
    except ValueError as e:
      raise UserError(f'--algorithms: {text!r}: {e}.') from e
  return name, chosen


def _parser(flag: str) -> Callable[[str], Any]:
  """The function that parses the text of a flag's value."""
  return int if flag == 'num_clusters' else flags.FLAGS[flag].parser.parse


def label_of(name: str, chosen: Mapping[str, Any]) -> str:
  """How tables and folders call a method, e.g. 'fesem(4)'."""
  inside = [str(chosen['num_clusters'])] if 'num_clusters' in chosen else []
  inside += [f'{o}={v}' for o, v in chosen.items() if o != 'num_clusters']
  return f'{name}({";".join(inside)})' if inside else name
