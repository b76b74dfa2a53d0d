"""Methods and models of the user's own, named MODULE:FUNCTION by a flag.

Options are the function's keyword-only arguments, with the types of their defaults.
"""

import functools
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.utils.errors import UserError

_TYPES = (bool, int, float, str)
_BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}


def is_own(text: str) -> bool:
  """True if the name of an expression is MODULE:FUNCTION."""
  name, *_ = text.partition('(')
  return re.fullmatch(r'[^\W\d][\w.]*:[^\W\d]\w*', name) is not None


@functools.cache
def load(name: str) -> Callable[..., Any]:
  """Imports MODULE:FUNCTION, with the current directory on the path."""
  module_name, _, function_name = name.partition(':')
  if not {'', os.getcwd()} & set(sys.path):  # Absent where a script was started.
    sys.path.insert(0, os.getcwd())
  return getattr(importlib.import_module(module_name), function_name)


_digests: dict[str, str] = {}


def check_reproducible(chosen: Mapping[str, Any], digest: str) -> None:
  """Checks that a data set of the user's own is the same at each call of a process.

  Several methods, or new clients and their run, would have other data otherwise.
  `chosen` are the flags of data, `digest` that of the splits.
  """
  text = json.dumps(chosen, sort_keys=True, default=str)
  if _digests.setdefault(text, digest) != digest:
    raise UserError(
      f'dataset: {chosen["dataset"]} is not reproducible; seed its generator'
    )


def options(function: Callable[..., Any]) -> dict[str, Any]:
  """The keyword-only arguments whose defaults are numbers, text, True or False."""
  parameters = inspect.signature(function).parameters.values()
  return {
    p.name: p.default
    for p in parameters
    if p.kind is p.KEYWORD_ONLY and type(p.default) in _TYPES
  }


def value(text: str, default: Any) -> Any:
  """A value of the type of a default, from its text; raises `UserError`."""
  kind = type(default)
  try:
    return _BOOLEANS[text.lower()] if kind is bool else kind(text)
  except (KeyError, ValueError) as e:
    raise UserError(f'{text!r} is no {kind.__name__}') from e
