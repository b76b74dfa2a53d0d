"""What made a method or a model: the name of a function and its arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.identity import Identity, is_default
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError

_Build = TypeVar('_Build', bound=Callable[..., Any])


class MadeBy(NamedTuple):
  """The identity of what a function of this package made; see `Identity`."""

  values: tuple[str, ...]
  code: tuple[tuple[str, str], ...]
  packages: frozenset[str]
  parts: tuple[Any, ...]  # of what was made; others may take their places


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
    if first in ('local', 'method'):
      _check_first(first, args[0] if args else named.get(first))
    made = build(*args, **named)
    found, values = Identity(), [f'made by={build.__name__}']
    for name, x in signature.bind(*args, **named).arguments.items():
      if name != 'local' and not is_default(x, signature.parameters[name].default):
        values += found.values(name, x)
    code, packages = tuple(found.code()), frozenset(found.packages)
    return made._replace(made_by=MadeBy(tuple(values), code, packages, tuple(made)))

  return building  # type: ignore[return-value]


def _check_first(name: str, x: Any) -> None:
  """Raises `UserError` unless a method gets local training, and a wrapper a method."""
  if isinstance(x, LocalTraining if name == 'local' else Algorithm):
    return
  if name == 'local':
    raise UserError(
      f'`local` is a {type(x).__name__}, not a LocalTraining; make one with '
      'local_training(model, optimizer).'
    )
  raise UserError(
    f'`method` is a {type(x).__name__}, not an Algorithm; make one with e.g. '
    'algorithms.fesem(local, num_clusters=4).'
  )
