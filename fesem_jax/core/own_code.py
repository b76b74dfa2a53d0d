"""Functions of the user's own code: what they hold, and what they do."""

import dis
import functools
import inspect
import os
import pathlib
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

_PACKAGE = str(pathlib.Path(__file__).parent.parent)
_FOLDERS = (sysconfig.get_path(name) for name in ('stdlib', 'purelib', 'platlib'))
_INSTALLED = tuple(os.path.join(folder, '') for folder in (_PACKAGE, *_FOLDERS))
# Those that prepare cells, in the order of their names.
_NO_COMPUTATION = {'LOAD_CLOSURE', 'MAKE_CELL', 'COPY_FREE_VARS', 'RESUME', 'NOP'}


def is_own(x: Any) -> bool:
  """True if a function, class or module is of no installed package."""
  path: str | None
  if isinstance(x, types.FunctionType):
    path = x.__code__.co_filename
    if path == '<string>':  # Methods of tuples and data classes.
      return _is_own_module(x.__module__)
  elif isinstance(x, types.ModuleType):
    path = getattr(x, '__file__', None)
    if path is None:  # Of a notebook, or built in.
      return x.__name__ == '__main__'
  elif isinstance(x, type):
    return _is_own_module(x.__module__)
  else:
    return False
  path = path or ''
  installed = path.startswith(_INSTALLED) or '-packages/' in path
  return not installed and not path.startswith('<frozen')


def is_own_function(x: Any) -> bool:
  """Tells if what is called is the user's own, also within others or as a method."""
  x = inspect.unwrap(x)
  if isinstance(x, functools.partial):
    return is_own_function(x.func)
  if isinstance(x, types.MethodType):
    return is_own_function(x.__func__) or is_own(type(x.__self__))
  return is_own(x) or is_own(type(x))


def _is_own_module(name: str | None) -> bool:
  return name not in sys.modules or is_own(sys.modules[name])


def cells_of(fn: types.FunctionType) -> dict[str, Any]:
  """Values that a function closes over, by the names of the variables."""
  contents = {}
  for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
    try:
      contents[name] = cell.cell_contents
    except ValueError:  # Not assigned yet.
      continue
  return contents


def instructions_of(code: types.CodeType) -> Iterator[tuple[str, Any]]:
  """Names and arguments of what a function does, in its order."""
  for each in dis.get_instructions(code):
    if each.opname not in _NO_COMPUTATION:
      yield each.opname, each.argval


def names_of(code: types.CodeType) -> Iterator[tuple[str, Any]]:
  """Instructions of a function and those within it, in their order."""
  for opname, argument in instructions_of(code):
    if isinstance(argument, types.CodeType):
      yield from names_of(argument)
    elif isinstance(argument, str):
      yield opname, argument
