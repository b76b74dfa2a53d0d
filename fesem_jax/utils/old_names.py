"""Arguments under the names of an older version, which still work with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar('_Function', bound=Callable[..., Any])


def accepts(
  now: Mapping[str, str],
  call: Callable[[Callable[..., Any], dict[str, Any], dict[str, Any]], Any],
) -> Callable[[_Function], _Function]:
  """A decorator for a function whose keyword arguments had other names.

  Args:
    now: old name -> what is given in its place, for the warning.
    call: (function, arguments by name, those under old names) -> what it returns.
  """

  def decorate(function: _Function) -> _Function:
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def accepting(*args: Any, **given: Any) -> Any:
      if not now.keys() & given.keys():
        return function(*args, **given)
      given |= dict(zip(names, args, strict=False))
      return call(function, *parted(function.__name__, given, now))

    return accepting  # type: ignore[return-value]

  return decorate


def parted(
  function: str, given: Mapping[str, Any], now: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Arguments of a function under today's names, and those under old ones.

  Warns the caller's caller of the latter; for `now`, see `accepts`.
  """
  old = {name: x for name, x in given.items() if name in now}
  if old:
    advice = '; '.join(f'{name}: {now[name]}' for name in old)
    warnings.warn(
      f'{function}(..., {", ".join(old)}) is deprecated and goes with the next '
      f'release; {advice}.',
      DeprecationWarning,
      stacklevel=3,
    )
  return {name: x for name, x in given.items() if name not in now}, old
