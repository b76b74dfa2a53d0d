"""Identities of methods, models and optimizers: values and the user's own functions.

Methods, models and optimizers are functions that hold numbers, arrays and other
functions. Two of them are the same if these values are, and if the functions of the
user's own code are; functions of installed packages go by their names.
"""

import argparse
import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import operator
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core.field_values import (
  PLAIN,
  defaults_of,
  digest_of,
  fields_of,
  is_given,
  text_of_array,
)
from fesem_jax.core.own_code import cells_of, instructions_of, is_own, names_of
from fesem_jax.utils.notices import warn_once

# The last entry of `code`.
CALLS = 'calls'
_ARRAY = jax.Array | np.ndarray | np.generic
# Those whose text in Python has their value.
_SHOWN = (
  PLAIN | enum.Enum | np.dtype | jax.ShapeDtypeStruct | slice | range
  | fractions.Fraction | decimal.Decimal | pathlib.PurePath
  | datetime.date | datetime.timedelta | bytearray | array.array
  | operator.itemgetter | operator.attrgetter | operator.methodcaller
)  # fmt: skip
_NAMESPACE = argparse.Namespace | types.SimpleNamespace
# Attributes that Flax gives to methods.
_MARKS = 'compact', 'compact_name_scope', 'nowrap'
_PARTIAL = functools.partial | functools.partialmethod
_NOTHING = object()


class Identity:
  """The values and functions of what is added to it, in the order in which they occur.

  Names of functions and variables do not matter; keys, and fields of classes that are
  not the user's, are part of a value, as those that have their defaults are left out.
  The attribute `packages` has the names of the installed packages that were met.
  """

  def __init__(self) -> None:
    self.packages: set[str] = set()
    self._values: list[str] = []
    self._functions: list[tuple[str, str]] = []
    self._met_own = False
    self._met: list[int] = []  # The numbers of objects as they are met.
    self._numbers: dict[int, int] = {}
    self._kept: list[Any] = []  # So that no other object gets the id of one of them.
    self._begin = 0  # Values of the object that is added.
    self._places: dict[int, tuple[int, int]] = {}  # Of objects, among the values.

  def code(self) -> list[tuple[str, str]]:
    """Name and digest of each function of the user's own code.

    The last digest is of which object is used where; it is there if anything is.
    """
    if not self._met_own:
      return self._functions
    return [*self._functions, (CALLS, digest_of(repr(self._met)))]

  def values(self, name: str, x: Any) -> list[str]:
    """The values of an object, each as name=value."""
    self._begin = len(self._values)
    self._add(name, x)
    return self._values[self._begin :]

  def versions(self) -> dict[str, str]:
    """The version of each installed package that was met, where it has one."""
    modules = {name: sys.modules.get(name) for name in sorted(self.packages)}
    named = {name: getattr(m, '__version__', None) for name, m in modules.items()}
    return {name: version for name, version in named.items() if version is not None}

  def _add(self, name: str, x: Any) -> None:
    text = self._text(x)
    if text is not None:
      self._values.append(f'{name}={text}')
    elif isinstance(x, Mapping | _NAMESPACE):
      entries = x if isinstance(x, Mapping) else vars(x)
      keys = [_key(key) for key in entries]
      self._values.append(f'{name}={len(keys)} entries{_in_brackets(keys)}')
      for key, value in zip(keys, entries.values(), strict=True):
        self._add(key, value)
    elif isinstance(x, tuple | list | collections.deque) and not _is_record(x):
      if is_own(type(x)):
        self._add(name, type(x))
      self._values.append(f'{name}={len(x)} values')
      for value in x:
        self._add(name, value)
    elif self._is_new(x):
      begin = len(self._values)
      self._add_object(name, x)
      self._places[id(x)] = begin, len(self._values)
    elif not is_own(_unwrapped(x)):  # Calls of the user's functions are in `code`.
      begin, end = self._places.get(id(x), (0, 0))  # None within itself.
      if self._begin <= begin < end:
        self._values.append(f'{name}=as {begin - self._begin} to {end - self._begin}')

  def _is_new(self, x: Any) -> bool:
    """True if an object is met for the first time."""
    number = self._numbers.setdefault(id(x), len(self._numbers))
    self._met.append(number)
    if number < len(self._kept):
      return False
    self._kept.append(x)
    return True

  def _text(self, x: Any) -> str | None:
    """A value in one text; None for an object that holds others."""
    if isinstance(x, str | bytes) and len(x) > 100:
      return digest_of(x)
    if isinstance(x, _ARRAY):
      return text_of_array(x)
    if isinstance(x, _SHOWN):
      return repr(x)
    if isinstance(x, set | frozenset):  # Their order is not the same in each process.
      return repr(sorted(self._text(each) or _key(each) for each in x))
    if isinstance(x, Mesh | jax.Device | jax.sharding.Sharding):
      return type(x).__name__
    if isinstance(x, types.ModuleType):
      return None if is_own(x) else x.__name__
    if isinstance(x, types.MethodType | _PARTIAL) or _is_of_object(x):
      return None
    if _is_function(x):
      bare = x if isinstance(x, types.FunctionType) else inspect.unwrap(x)
      held = getattr(bare, '__closure__', None)
      return None if is_own(bare) or held else self._called(bare)
    return None

  def _called(self, x: Any) -> str:
    """The name of a function or class of an installed package, without inner names."""
    top = str(getattr(x, '__module__', None) or 'builtins').partition('.')[0]
    self.packages.add(top)
    name = str(getattr(x, '__qualname__', None) or getattr(x, '__name__', type(x)))
    return f'{top}:{name.partition(".<locals>")[0]}'

  def _add_object(self, name: str, x: Any) -> None:
    if getattr(x, 'made_by', None) is not None:
      self._add_made(x)
    elif isinstance(x, types.MethodType):
      self._add(name, x.__func__)
      self._add(name, x.__self__)
    elif _is_of_object(x):
      self._values.append(f'{name}={x.__name__}')
      self._add(name, x.__self__)
    elif isinstance(x, _PARTIAL):
      self._add(name, x.func)
      self._add(name, x.args)
      self._add(name, x.keywords)
    elif isinstance(x, type):
      self._add_class(x)
    elif isinstance(x, types.FunctionType):
      self._add_function(name, x)
    elif isinstance(x, types.ModuleType):
      pass  # What a function uses of it is added with the function.
    elif _is_function(x) and hasattr(x, '__wrapped__'):  # As of `jax.custom_vjp`.
      self._add(name, _unwrapped(x))
      for field, value in fields_of(x):
        if callable(value):
          self._add(field, value)
    else:
      self._add_fields(name, x)

  def _add_made(self, x: Any) -> None:
    """Adds what made an object, and what has replaced parts of it."""
    values, code, packages = x.made_by.now()
    parts = x.made_by.parts
    self._values.extend(values)
    self._functions.extend(code)
    self.packages |= packages
    for field, part, value in zip(x._fields, parts, x, strict=True):
      # All but the first are of messages alone.
      words = 'made_by', 'penalties', 'thresholds', 'outcome', 'fewest'
      if value is not part and field not in words:
        self._add(field, value)
        if field == 'local':  # The method trains by the one that it was made of.
          self._add(field, part)

  def _add_fields(self, name: str, x: Any) -> None:
    kind, held = type(x), dict(fields_of(x))
    package = kind.__module__.partition('.')[0]
    if isinstance(x, Iterator) and package in sys.stdlib_module_names:
      warn_once(
        f'`{name}`, which a function of yours uses, is a {kind.__name__}: what it '
        'gives is taken when the function is compiled, once, and tells no runs apart; '
        'give a list or an array.'
      )
    if is_own(kind):
      self._add(name, kind)
    elif package in sys.stdlib_module_names:
      held = {}  # Such as a lock, a file or a logger.
    elif package in ('pandas', 'polars') and hasattr(x, '__array__'):
      held = {'columns': list(getattr(x, 'columns', ())), 'values': np.asarray(x)}
    if not is_own(kind):
      self._values.append(f'{name}={self._called(kind)}{_in_brackets(held)}')
    for field, value in held.items():
      self._add(field, value)

  def _add_class(self, kind: type) -> None:
    for each in kind.__mro__:
      if not is_own(each):
        continue
      held = dict(vars(each))
      if isinstance(each, enum.EnumMeta):
        held |= each.__members__
      for name, x in held.items():
        if isinstance(x, functools.cached_property):
          x = x.func
        x = getattr(x, 'fget', None) or getattr(x, '__func__', x)
        function = _unwrapped(x)
        if isinstance(function, types.FunctionType) and is_own(function):
          if function.__code__.co_filename != '<string>':
            self._add(name, function)
        elif name.startswith('_') and callable(x):  # Such as `_make` of a named tuple.
          continue
        elif not is_given(kind, name) and not inspect.isdatadescriptor(x):
          self._add(name, x)

  def _add_function(self, name: str, fn: types.FunctionType) -> None:
    cells = cells_of(fn)
    if not is_own(fn):
      self._values.append(f'{name}={self._called(fn)}')
      for free in dict.fromkeys(n for _, n in names_of(fn.__code__) if n in cells):
        self._add(free, cells[free])
      return
    place, title = len(self._functions), fn.__qualname__.replace('.<locals>', '')
    self._functions.append((title, ''))
    self._met_own = True
    for defaults in (fn.__defaults__ or (), (fn.__kwdefaults__ or {}).values()):
      if defaults:
        self._add('default', tuple(defaults))
    for field, value in vars(fn).items():
      if not field.startswith('__') and field not in _MARKS:
        self._add(field, value)
    does = self._instructions(fn.__code__, fn.__globals__, cells, {}, {})
    text = '\n'.join(does)
    self._functions[place] = title, digest_of(text)

  def _instructions(
    self,
    code: types.CodeType,
    variables: Mapping[str, Any],
    cells: Mapping[str, Any],
    numbers: dict[str, str],
    held: dict[tuple[str, str], str],
    depth: int = 0,
  ) -> Iterator[str]:
    """Instructions of a function's code, without the names of variables and functions.

    Comments, docstrings and annotations are no part of it. `variables` are global and
    `cells` from outside of the function; `numbers` are those of its own variables, and
    `held` has the words for what it has used of the others.
    """
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # An inner function has variables of its own, and those around it.
    numbers = numbers | {own: f'{depth} given {i}' for i, own in enumerate(arguments)}
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    yield f'{code.co_argcount} {code.co_kwonlyargcount} {starred}'
    module: Any = None  # Of the user, whose attribute comes next.
    for opname, argument in instructions_of(code):
      within, module = module, None
      if isinstance(argument, types.CodeType):
        yield from self._instructions(
          argument, variables, cells, numbers, held, depth + 1
        )
        continue
      value = _NOTHING
      if opname == 'LOAD_GLOBAL':
        value = variables.get(argument, _NOTHING)
      elif opname.endswith('_DEREF') and argument in cells:
        value = cells[argument]
      elif opname in ('LOAD_ATTR', 'LOAD_METHOD') and within is not None:
        value = getattr(within, argument, _NOTHING)
      elif opname.endswith(('_FAST', '_DEREF')) or '_FAST_' in opname:
        names = argument if isinstance(argument, tuple) else (argument,)
        for own in names:
          numbers.setdefault(own, f'{depth} own {len(numbers)}')
        yield f'{opname} {[numbers[own] for own in names]}'
        continue
      if value is _NOTHING:
        shown = sorted(map(repr, argument)) if isinstance(argument, frozenset) else None
        yield f'{opname} {shown or repr(argument)}'
        continue
      if isinstance(value, types.ModuleType) and is_own(value):
        module = value
      use = '' if within is None else within.__name__, argument
      if use not in held:
        text = self._used(argument, value, opname)
        held[use] = f'outer {len(held)}' if text is None else text
      yield f'{opname} {held[use]}'

  def _used(self, name: str, x: Any, opname: str) -> str | None:
    """Adds what a function uses from outside, or returns its name in a package."""
    text = self._text(x)
    is_value = isinstance(x, _SHOWN | _ARRAY | set | frozenset)
    if text is not None and not is_value and not opname.endswith('_DEREF'):
      return text  # A function or module of an installed package.
    self._add(name, x)
    if isinstance(x, type) and is_own(x) and dataclasses.is_dataclass(x):
      self._add(name, defaults_of(x))  # Of objects that the function makes.
    return None


def _is_function(x: Any) -> bool:
  return callable(x) and hasattr(x, '__name__')


def _unwrapped(x: Any) -> Any:
  """The function within those of decorators and of `jax.jit`, or the object itself."""
  return inspect.unwrap(x) if callable(x) else x


def _is_of_object(x: Any) -> bool:
  """True if a function is a built-in one of an object, as `{}.get`."""
  held = getattr(x, '__self__', None)
  is_builtin = isinstance(x, types.BuiltinMethodType | types.MethodWrapperType)
  return is_builtin and not isinstance(held, types.ModuleType | type | type(None))


def _is_record(x: Any) -> bool:
  """True if a tuple has named fields."""
  return hasattr(x, '_fields')


def _key(x: Any) -> str:
  """A key of a mapping, which may be a tuple, as text without an address."""
  if isinstance(x, tuple):
    return repr([_key(each) for each in x])
  return str(x) if isinstance(x, PLAIN) else type(x).__name__


def _in_brackets(names: Iterable[str]) -> str:
  text = ', '.join(names)
  return f'({text if len(text) <= 100 else digest_of(text)})' if text else ''
