"""Origin of a method or a model: the name of a function and its options."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fesem_jax.core import hyperparameters
from fesem_jax.utils import ranges

_Build = TypeVar('_Build', bound=Callable[..., Any])

PLAIN = str | bool | int | float | None


class MadeBy(NamedTuple):
  """The function that made a method or a model, and its options."""

  name: str
  options: tuple[tuple[str, Any], ...]  # without those that have their defaults

  def described(self) -> dict[str, Any]:
    """The name and the options, as JSON would give them back."""
    entries: dict[str, Any] = {'name': self.name}
    for name, x in self.options:
      if isinstance(x, MadeBy):
        entries[name] = x.described()
      else:
        entries[name] = list(x) if isinstance(x, tuple) else x
    return entries


def recorded(build: _Build) -> _Build:
  """A checked function whose result gets `made_by`: its name and plain options."""
  signature = inspect.signature(build)

  @functools.wraps(build)
  def building(*args: Any, **named: Any) -> Any:
    arguments = signature.bind(*args, **named).arguments
    ranges.check_arguments(build, dict(arguments))
    options = [
      (name, _plain(x)) for name, x in arguments.items()
      if _is_plain(_plain(x)) and _plain(x) != signature.parameters[name].default
    ]  # fmt: skip
    made_by = MadeBy(build.__name__, tuple(options))
    return build(*args, **named)._replace(made_by=made_by)

  return building  # type: ignore[return-value]


def _plain(x: Any) -> Any:
  """A number, a tuple of them or a `MadeBy` in place of an array, list or method."""
  x = hyperparameters.plain(x)
  if isinstance(x, np.ndarray | np.generic | jax.Array) and np.shape(x) == ():
    return x if isinstance(x, jax.core.Tracer) else x.item()
  if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
    return tuple(map(_plain, x))
  return getattr(x, 'made_by', x)


def _is_plain(x: Any) -> bool:
  if type(x) is tuple:
    return all(isinstance(value, PLAIN) for value in x)
  return isinstance(x, PLAIN | MadeBy)
