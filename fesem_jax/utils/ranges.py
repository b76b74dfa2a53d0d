"""Ranges of arguments, as annotations of a signature and as the check of a call."""

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import jax
import numpy as np

from fesem_jax.utils.errors import UserError, check

_Function = TypeVar('_Function', bound=Callable[..., Any])


class Range(NamedTuple):
  """Numbers from `least` to `most`, or only those above or below a bound."""

  least: float = -math.inf
  most: float = math.inf
  above: float = -math.inf
  below: float = math.inf

  def has(self, x: Any) -> bool:
    """True if a number lies in the range, which NaN does not."""
    return bool(self.least <= x <= self.most and self.above < x < self.below)

  def __str__(self) -> str:
    words = {'at least': self.least, 'at most': self.most}
    words |= {'above': self.above, 'below': self.below}
    return ' and '.join(f'{w} {x:.10g}' for w, x in words.items() if math.isfinite(x))


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, below=1)]  # [0, 1)
Fraction = Annotated[float, Range(0, 1)]  # [0, 1]
PositiveFraction = Annotated[float, Range(above=0, most=1)]  # (0, 1]
Count = Annotated[int, Range(1)]
Index = Annotated[int, Range(0)]  # A count that may be 0, or a place.
Seed = Annotated[int, Range(0, below=2**32)]  # Larger ones repeat smaller ones.

_NUMBERS = {int: numbers.Integral, float: numbers.Real | jax.Array | np.ndarray}
_KINDS = {int: 'an integer', float: 'a number'}


def checked(function: _Function) -> _Function:
  """A function that refuses arguments outside of the ranges of its annotations.

  Raises `UserError` on a number of another type or outside of its `Range`, and on a
  text that is not among those of a `Literal`.
  """
  signature = inspect.signature(function)

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    check_arguments(function, signature.bind(*args, **kwargs).arguments)
    return function(*args, **kwargs)

  return call  # type: ignore[return-value]


def check_arguments(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
  """Raises `UserError` on the first argument outside of the range of its annotation."""
  parameters = inspect.signature(function).parameters
  for name, value in arguments.items():
    check_argument(name, value, parameters[name].annotation)


def check_argument(name: str, value: Any, hint: Any) -> None:
  """Raises `UserError` if a value is outside of the range of an annotation."""
  parts = get_args(hint)
  if type(None) in parts:  # Optional.
    if value is None:
      return
    hint = next(part for part in parts if part is not type(None))
    parts = get_args(hint)
  if getattr(hint, '__origin__', None) is Literal:
    check_choice(name, value, parts)
    return
  span = next((part for part in parts if isinstance(part, Range)), None)
  kind = parts[0] if span else hint
  if kind in _NUMBERS:
    valid = isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    check(valid, f'{name}: must be {_KINDS[kind]}; got {value!r:.30}')
  if span is not None and not isinstance(value, jax.core.Tracer):
    check(span.has(value), f'{name}: must be {span}; got {value!s:.30}')


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
  """Raises `UserError` unless an argument is one of some texts."""
  if value not in choices:
    near = difflib.get_close_matches(str(value).lower(), choices, 1)
    hint = f'did you mean {near[0]}?' if near else f'expected {", ".join(choices)}'
    raise UserError(f'{name}: unknown value {value!r:.30}; {hint}')
