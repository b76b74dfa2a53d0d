"""Training mode of a Flax module, by arguments of its call."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from fesem_jax.utils.errors import UserError

# Argument -> its value in training.
_ARGUMENTS = {'train': True, 'training': True, 'deterministic': False}


class Modes(NamedTuple):
  """Arguments of a module's call beside the examples."""

  evaluate: dict[str, Any]  # keyword arguments where it does not train
  # Keyword arguments where it trains; None if it is the same function there, which
  # draws no random numbers.
  train: dict[str, Any] | None = None


ALWAYS_THE_SAME = Modes({})


def of_call(name: str, call: Callable[..., Any]) -> Modes:
  """The modes that the arguments of module `name`'s call allow.

  Raises `UserError` if the call needs other arguments than the examples and those.
  """
  signature = inspect.signature(call)
  named = {
    argument: value
    for argument, value in _ARGUMENTS.items()
    if argument in signature.parameters
    and signature.parameters[argument].kind is not inspect.Parameter.POSITIONAL_ONLY
  }
  try:
    signature.bind('x', **named)
  except TypeError as e:
    raise UserError(
      f'{name}.__call__ must take the examples and, if it must know whether it trains, '
      f'{", ".join(_ARGUMENTS)} alone ({e}); give its other arguments defaults.'
    ) from e
  return Modes({argument: not value for argument, value in named.items()}, named)


def of_one_function(modes: Modes, call: Callable[..., Any]) -> Modes:
  """The modes of a module that draws nothing: it keeps the defaults of its call."""
  parameters = inspect.signature(call).parameters
  needed = {
    name: value
    for name, value in modes.evaluate.items()
    if parameters[name].default is inspect.Parameter.empty
  }
  return Modes(needed)


def always_random(name: str) -> UserError:
  """The error of a module that would draw random numbers in evaluation too."""
  return UserError(
    f'{name} has Dropout or another layer that draws random numbers without being told '
    f'when it trains; give __call__ an argument train=False (or training, or '
    'deterministic=True) and hand it on to that layer.'
  )
