"""An entry of a table of flags."""

import functools
from typing import Any, NamedTuple

from fesem_jax import algorithms

from .. import methods


class Flag(NamedTuple):
  """A flag as absl defines it.

  Attributes:
    kind: the X of absl's DEFINE_X.
    name: without dashes.
    default: None for options of methods, which have defaults of their own.
    help: as --help prints it.
    extra: further arguments of DEFINE_X.
  """

  kind: str
  name: str
  default: Any
  help: str
  extra: dict[str, Any]


def flag(kind: str, name: str, default: Any, text: str, **extra: Any) -> Flag:
  """A flag with one default."""
  return Flag(kind, name, default, text, extra)


@functools.cache
def _options() -> dict[str, dict[str, Any]]:
  """The options of each method; inspecting all their signatures takes a millisecond."""
  return {method: methods.options(method) for method in algorithms.METHODS}


def option(kind: str, name: str, text: str, **extra: Any) -> Flag:
  """A flag of method options; without a value, each method has its own default."""
  defaults = [
    f'{method}: {own[name]}'
    for method, own in _options().items()
    if own.get(name) is not None
  ]
  defaults += [
    f'{server}: {value}' for server, value in methods.server_defaults(name).items()
  ]
  return Flag(kind, name, None, f'{text} Default: {", ".join(defaults)}.', extra)
