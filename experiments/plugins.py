"""Methods, models and data of the user's own, named MODULE:FUNCTION by a flag.

Options are the function's keyword-only arguments, with the types of their defaults.
"""

import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fesem_jax import models
from fesem_jax.data import sources
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.expressions import split

_TYPES = (bool, int, float, str)
_BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}


def is_own(name: str) -> bool:
  """True if a name is MODULE:FUNCTION, and not a data set such as npz:FILE."""
  named = re.fullmatch(r'[^\W\d][\w.]*:[^\W\d]\w*', name) is not None
  return named and name.partition(':')[0] not in sources.PREFIXES


@functools.cache
def load(name: str) -> Callable[..., Any]:
  """Imports MODULE:FUNCTION, with the current directory on the path."""
  module_name, _, function_name = name.partition(':')
  if not {'', os.getcwd()} & set(sys.path):  # Absent where a script was started.
    sys.path.insert(0, os.getcwd())
  return getattr(importlib.import_module(module_name), function_name)


_digests: dict[tuple[Any, ...], str] = {}


def check_reproducible(
  name: str, options: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
  """Checks that a data set of the user's own is the same at each call of a process.

  Several methods, or new clients and their run, would have other data otherwise.
  """
  digest = hashlib.sha256()
  for key in sorted(arrays, key=str):
    array = np.asarray(arrays[key])
    digest.update(f'{key} {array.dtype} {array.shape}'.encode())
    if array.dtype.hasobject:  # Other objects may have an address as their text.
      plain = (x for x in array.reshape(-1) if isinstance(x, str | bytes | int | float))
      digest.update(json.dumps(list(map(repr, plain))).encode())
    else:
      digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  call = load(name), *sorted(options.items())
  if _digests.setdefault(call, digest.hexdigest()) != digest.hexdigest():
    raise UserError(
      f'dataset: {name} is not reproducible; make its random generator from a seed'
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


def given(flag: str, text: str, allowed: Mapping[str, Any]) -> dict[str, Any]:
  """Options of a function from a flag's text, NAME=VALUE,NAME=VALUE."""
  values: dict[str, Any] = {}
  for part in filter(None, split(text, subject=flag)):
    name, equals, of_name = map(str.strip, part.partition('='))
    check(equals, f'{flag}: {part!r} is not NAME=VALUE')
    options = ', '.join(allowed) or 'none'
    check(name in allowed, f'{flag}: unknown option {name!r}; expected {options}')
    values[name] = value(of_name, allowed[name])
  return values


def resolved(kind: str, name: str, text: str) -> dict[str, Any]:
  """All options of a model or data set: those given, and the other defaults.

  `kind` is the flag that names it, 'model' or 'dataset'; `text` is the value of
  --model_options or --dataset_options. Options of a model of this package are left out
  if all have their defaults.
  """
  flag = f'{kind}_options'
  if is_own(name):
    allowed = options(load(name))
    return allowed | given(flag, text, allowed)
  if text and kind == 'model':
    allowed = models.options(name)
    chosen = allowed | given(flag, text, allowed)
    return {} if chosen == allowed else chosen  # As in runs without the flag.
  check(not text, f'{flag}: {name} has no options; leave it out')
  return {}
