"""Flags from the functions and values that take them.

A flag's help is the entry of its argument in the docstring, its kind and its default
are those of the signature.
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags

_SYMBOL = re.compile(
  r'(lambda|mu|tau|eta|alpha|sigma|delta|beta|epsilon|[b-z])(\b|_)|a[,;.]'
)


class CountOrShare(flags.FloatParser):  # type: ignore[misc]
  """The values of a flag that takes 1, an integer, and 0.1 for other things."""

  def convert(self, argument: Any) -> int | float:
    """An integer of a text without a point or an exponent, else a float."""
    try:
      return int(argument) if isinstance(argument, str) else argument
    except ValueError:
      return float(argument)


class Flag(NamedTuple):
  """A flag as absl defines it.

  Attributes:
    kind: the X of absl's DEFINE_X; 'number' with a `parser` of its own.
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


def of(
  function: Callable[..., Any],
  argument: str,
  name: str = '',
  *,
  choices: Sequence[str] = (),
  more: str = '',
  **extra: Any,
) -> Flag:
  """The flag of an argument of a function, or of a field of a value.

  `name` is the flag's, if it is another one. `choices` make it an enumeration; `more`
  is added to what the docstring says. `extra` are further arguments of DEFINE_X;
  `default` replaces that of the signature.
  """
  parameter = inspect.signature(function).parameters[argument]
  default = extra.pop('default', parameter.default)
  if isinstance(default, tuple):
    default = list(default)
  if choices:
    extra['enum_values'] = tuple(choices)
  text = f'{documented(function).get(argument, "")} {more}'.strip()
  return Flag(kind_of(default, choices), name or argument, default, text, extra)


def fields(
  value: Any, choices: dict[str, Sequence[str]], left_out: Sequence[str] = ()
) -> tuple[Flag, ...]:
  """The flags of all fields of a value, but for those left out."""
  names = [n for n in inspect.signature(value).parameters if n not in left_out]
  return tuple(of(value, name, choices=choices.get(name, ())) for name in names)


def kind_of(default: Any, choices: Sequence[str] = ()) -> str:
  """The X of absl's DEFINE_X for a flag with this default."""
  if choices:
    return 'enum'
  kinds = {bool: 'bool', int: 'integer', float: 'float', str: 'string'}
  return kinds.get(type(default), 'list')


@functools.cache
def documented(function: Callable[..., Any]) -> dict[str, str]:
  """Argument -> its entry in a docstring, as one sentence or more."""
  text = inspect.getdoc(function) or ''
  section = re.search(r'^(?:Args|Attributes):\n((?: +.*\n?|\n)*)', text, re.M)
  entries = re.findall(
    r'^  \**(\w+): (.*(?:\n    .*)*)', section[1] if section else '', re.M
  )
  return {name: _sentence(entry) for name, entry in entries}


def _sentence(entry: str) -> str:
  """An entry that begins with a capital, unless with a symbol, and ends with a dot."""
  text = re.sub(r'[,;] see `[\w.]+`|(?<=\.) See `\w+`\.', '', ' '.join(entry.split()))
  if not _SYMBOL.match(text):
    text = text[:1].upper() + text[1:]
  return text if text.endswith('.') else f'{text}.'
