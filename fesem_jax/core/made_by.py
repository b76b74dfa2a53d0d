"""Origin of a method or a model: the name of a function and its arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.field_values import is_default
from fesem_jax.core.identity import Identity
from fesem_jax.core.local_training import check_local
from fesem_jax.utils import ranges
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import UserError

_Build = TypeVar('_Build', bound=Callable[..., Any])


# Values, code and packages.
_Identified = tuple[tuple[str, ...], tuple[tuple[str, str], ...], frozenset[str]]


class MadeBy(NamedTuple):
  """The identity of what a function of this package made; see `Identity`."""

  values: tuple[str, ...]
  code: tuple[tuple[str, str], ...]
  packages: frozenset[str]
  parts: tuple[Any, ...]  # of what was made; others may take their places
  look: Callable[[], _Identified]  # gives the first three anew

  def now(self) -> _Identified:
    """The first three: what functions of the user's own read may have changed."""
    return self.look() if self.code else self[:3]


def recorded(build: _Build) -> _Build:
  """A function that makes a method or model, which then knows what made it.

  Runs are identified by this, so that other inner functions in a later version of this
  package leave a workdir valid. Arguments that have their defaults are left out, and so
  is `local`, of which a method is made.
  """
  signature = inspect.signature(build)
  first = next(iter(signature.parameters))

  @functools.wraps(build)
  def building(*args: Any, **named: Any) -> Any:
    try:
      arguments = signature.bind(*args, **named).arguments
    except TypeError:
      return build(*args, **named)  # Python's message.
    if first in ('local', 'method'):
      _check_first(first, arguments[first])
    ranges.check_arguments(build, dict(arguments))
    result = build(*args, **named)
    given = {
      name: x for name, x in arguments.items()
      if name != 'local' and not is_default(x, signature.parameters[name].default)
    }  # fmt: skip

    def look() -> _Identified:
      identity, values = Identity(), [f'made by={build.__name__}({", ".join(given)})']
      for name, x in given.items():
        values += identity.values(name, x)
      return tuple(values), tuple(identity.code()), frozenset(identity.packages)

    return result._replace(made_by=MadeBy(*look(), tuple(result), look))

  return building  # type: ignore[return-value]


def _check_first(name: str, x: Any) -> None:
  """Raises `UserError` unless a method gets local training, and a wrapper a method."""
  if name == 'local':
    check_local(x)
  elif not isinstance(x, Algorithm):
    raise UserError(
      f'`method` is {kind_of(x)}, not an Algorithm; make one with e.g. '
      'algorithms.fesem(local, num_clusters=4).'
    )
