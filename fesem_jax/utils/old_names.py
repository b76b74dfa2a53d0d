"""Arguments under the names of an older version, which still work with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar('_Function', bound=Callable[..., Any])


def accepts(
  now: Mapping[str, str],
  renewed: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> Callable[[_Function], _Function]:
  """A decorator for a function whose keyword arguments had other names.

  Args:
    now: old name -> what is given in its place, for the warning.
    renewed: (arguments by name, those under old names) -> all under today's names.
  """

  def decorate(function: _Function) -> _Function:
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def accepting(*args: Any, **given: Any) -> Any:
      if not now.keys() & given.keys():
        return function(*args, **given)
      given |= dict(zip(names, args, strict=False))
      return function(**current(function.__name__, given, now, renewed))

    return accepting  # type: ignore[return-value]

  return decorate


def current(
  function: str,
  given: Mapping[str, Any],
  now: Mapping[str, str],
  renewed: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
  stacklevel: int = 3,
) -> dict[str, Any]:
  """Keyword arguments of a function under today's names; see `accepts`."""
  old = {name: x for name, x in given.items() if name in now}
  rest = {name: x for name, x in given.items() if name not in now}
  if not old:
    return rest
  advice = '; '.join(f'{name}: {now[name]}' for name in old)
  warnings.warn(
    f'{function}(..., {", ".join(old)}) is deprecated and goes with the next release; '
    f'{advice}.',
    DeprecationWarning,
    stacklevel=stacklevel,
  )
  return renewed(rest, old)
