"""What identifies a method, a model or an optimizer: its values and its own functions.

Methods, models and optimizers are functions that hold numbers, arrays and other
functions. Two of them are the same if these values are, and if the functions of the
user's own code are; functions of installed packages go by their names.
"""

import dataclasses
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core.own_code import cells_of, instructions_of, is_own, names_of

# The last entry of `code`.
CALLS = 'calls'
# Where a method runs and how fast, not what it computes.
_PLACEMENT = {
  'mesh', 'clients_per_chunk', 'clients_per_shared_start', 'shared_start',
  'data_placement',
}  # fmt: skip
# Fields of every Linen module.
_OF_LINEN = 'parent', 'name', 'scope', '_parent_ref'
_PLAIN = str | bytes | bool | int | float | complex | type(None) | type(...)


class Identity:
  """The values and functions of what is added to it, in the order in which they occur.

  Names of functions and of what holds a value do not matter. The attribute `packages`
  has the names of the installed packages that were met.
  """

  def __init__(self) -> None:
    self.packages: set[str] = set()
    self._values: list[str] = []
    self._functions: list[tuple[str, str]] = []
    self._met_own = False
    self._met: list[int] = []  # The numbers of objects as they are met.
    self._numbers: dict[int, int] = {}
    self._kept: list[Any] = []  # So that no other object gets the id of one of them.

  def code(self) -> list[tuple[str, str]]:
    """Name and digest of each function of the user's own code.

    The last digest is of which object is used where; it is there if anything is.
    """
    if not self._met_own:
      return self._functions
    return [*self._functions, (CALLS, _digest(repr(self._met)))]

  def values(self, name: str, x: Any) -> list[str]:
    """The values of an object, each as name=value."""
    begin = len(self._values)
    self._add(name, x)
    return self._values[begin:]

  def versions(self) -> dict[str, str]:
    """The version of each installed package that was met, where it has one."""
    found = {name: sys.modules.get(name) for name in sorted(self.packages)}
    named = {name: getattr(m, '__version__', None) for name, m in found.items()}
    return {name: version for name, version in named.items() if version is not None}

  def _add(self, name: str, x: Any) -> None:
    text = self._text(x)
    if text is not None:
      self._values.append(f'{name}={text}')
    elif isinstance(x, Mapping):
      self._values.append(f'{name}={len(x)} entries')
      for key, value in x.items():
        self._add(str(key) if isinstance(key, _PLAIN) else 'entry', value)
    elif type(x) in (tuple, list):
      self._values.append(f'{name}={len(x)} values')
      for value in x:
        self._add(name, value)
    elif self._is_new(x):
      self._add_object(name, x)

  def _is_new(self, x: Any) -> bool:
    """Whether an object is met for the first time."""
    number = self._numbers.setdefault(id(x), len(self._numbers))
    self._met.append(number)
    if number < len(self._kept):
      return False
    self._kept.append(x)
    return True

  def _text(self, x: Any) -> str | None:
    """A value in one text; None for an object that holds others."""
    if isinstance(x, str | bytes) and len(x) > 100:
      return _digest(x)
    if isinstance(x, _PLAIN | enum.Enum | np.dtype | jax.ShapeDtypeStruct | slice):
      return repr(x)
    if isinstance(x, set | frozenset):  # Their order is not the same in each process.
      return repr(sorted(repr(each) for each in x if isinstance(each, _PLAIN)))
    if isinstance(x, jax.Array | np.ndarray | np.generic):
      return _text_of_array(x)
    if isinstance(x, Mesh | jax.Device | jax.sharding.Sharding):
      return type(x).__name__
    if isinstance(x, types.ModuleType):
      return None if is_own(x) else x.__name__
    if isinstance(x, types.MethodType | functools.partial):
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
    elif isinstance(x, functools.partial):
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
      self._add(name, inspect.unwrap(x))
      for field, value in _fields(x):
        if callable(value):
          self._add(field, value)
    else:
      self._add_fields(name, x)

  def _add_made(self, x: Any) -> None:
    """Adds what made an object, and what has replaced parts of it."""
    values, code, packages, parts = x.made_by
    self._values.extend(values)
    self._functions.extend(code)
    self.packages |= packages
    for field, part, value in zip(x._fields, parts, x, strict=True):
      # Penalties are words for messages, of `algorithms.build` alone.
      if value is not part and field not in ('made_by', 'penalties'):
        self._add(field, value)
        if field == 'local':  # The method trains by the one that it was made of.
          self._add(field, part)

  def _add_fields(self, name: str, x: Any) -> None:
    kind = type(x)
    if is_own(kind):
      self._add(name, kind)
    else:
      self._values.append(f'{name}={self._called(kind)}')
      if kind.__module__.partition('.')[0] in sys.stdlib_module_names:
        return  # Such as a lock, a file or a logger.
    for field, value in _fields(x):
      self._add(field, value)

  def _add_class(self, kind: type) -> None:
    for each in kind.__mro__:
      if not is_own(each):
        continue
      for name, x in vars(each).items():
        x = getattr(x, 'fget', None) or getattr(x, '__func__', x)
        function = inspect.unwrap(x) if callable(x) else x
        if isinstance(function, types.FunctionType):
          if is_own(function) and function.__code__.co_filename != '<string>':
            self._add(name, function)
        elif isinstance(x, _PLAIN | np.ndarray) and not _is_given(kind, name):
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
    for default in (fn.__defaults__, fn.__kwdefaults__):
      if default:
        self._add('default', default)
    does = self._instructions(fn.__code__, fn.__globals__, cells, {}, {})
    text = '\n'.join(does)
    self._functions[place] = title, _digest(text)

  def _instructions(
    self,
    code: types.CodeType,
    variables: Mapping[str, Any],
    cells: Mapping[str, Any],
    numbers: dict[str, str],
    held: dict[str, str],
    depth: int = 0,
  ) -> Iterator[str]:
    """What a function's code does, without the names of variables and functions.

    Comments, docstrings and annotations are no part of it. `variables` are global and
    `cells` from outside of the function; `numbers` are those of its own variables, and
    `held` has the words for what it has used of the others.
    """
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # An inner function has variables of its own, and those around it.
    numbers = numbers | {own: f'{depth} given {i}' for i, own in enumerate(arguments)}
    rest = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    yield f'{code.co_argcount} {code.co_kwonlyargcount} {rest}'
    module: Any = None  # Of the user, whose attribute comes next.
    for opname, argument in instructions_of(code):
      within, module = module, None
      if isinstance(argument, types.CodeType):
        yield from self._instructions(
          argument, variables, cells, numbers, held, depth + 1
        )
        continue
      found = _NOTHING
      if opname == 'LOAD_GLOBAL':
        found = variables.get(argument, _NOTHING)
      elif opname.endswith('_DEREF') and argument in cells:
        found = cells[argument]
      elif opname in ('LOAD_ATTR', 'LOAD_METHOD') and within is not None:
        found = getattr(within, argument, _NOTHING)
      elif opname.endswith(('_FAST', '_DEREF')) or '_FAST_' in opname:
        names = argument if isinstance(argument, tuple) else (argument,)
        for own in names:
          numbers.setdefault(own, f'{depth} own {len(numbers)}')
        yield f'{opname} {[numbers[own] for own in names]}'
        continue
      if found is _NOTHING:
        shown = sorted(map(repr, argument)) if isinstance(argument, frozenset) else None
        yield f'{opname} {shown or repr(argument)}'
        continue
      if isinstance(found, types.ModuleType) and is_own(found):
        module = found
      if argument not in held:
        text = self._used(argument, found, opname)
        held[argument] = f'outer {len(held)}' if text is None else text
      yield f'{opname} {held[argument]}'

  def _used(self, name: str, x: Any, opname: str) -> str | None:
    """Adds what a function uses from outside, or returns its name in a package."""
    text = self._text(x)
    plain = isinstance(x, _PLAIN | jax.Array | np.ndarray | np.generic)
    if text is not None and not plain and not opname.endswith('_DEREF'):
      return text  # A function or module of an installed package.
    self._add(name, x)
    return None


_NOTHING = object()


def _fields(x: Any) -> Iterator[tuple[str, Any]]:
  """What an object holds, but for values that are defaults of its class."""
  placement = _PLACEMENT if type(x).__module__.startswith('fesem_jax.') else ()
  if isinstance(x, tuple) and hasattr(x, '_fields'):
    defaults = getattr(x, '_field_defaults', {})
    pairs = [
      (name, getattr(x, name), defaults.get(name, _NOTHING)) for name in x._fields
    ]
  elif dataclasses.is_dataclass(x):
    pairs = [
      (f.name, getattr(x, f.name, None), f.default)
      for f in dataclasses.fields(x)
      if not _is_of_linen(type(x), f.name)
    ]
  else:
    held = getattr(x, '__dict__', {})
    slots = [n for kind in type(x).__mro__ for n in getattr(kind, '__slots__', ())]
    pairs = [
      (name, getattr(x, name, None), _NOTHING)
      for name in dict.fromkeys([*held, *slots])
      if not isinstance(getattr(type(x), name, None), functools.cached_property)
    ]
  own = is_own(type(x))  # Whose defaults may change with the user's code.
  for name, value, default in pairs:
    left_out = name in placement or name.startswith('__')
    if not left_out and (own or not is_default(value, default)):
      yield name, value


def _is_given(kind: type, name: str) -> bool:
  """Whether an attribute is a field, or of a class that is not the user's."""
  fields = getattr(kind, '__dataclass_fields__', {})
  others = (each for each in kind.__mro__ if not is_own(each))
  given = any(hasattr(other, name) for other in others)
  return given or name in fields or _is_of_linen(kind, name)


def _is_of_linen(kind: type, name: str) -> bool:
  return name in _OF_LINEN and issubclass(kind, nn.Module)


def is_default(x: Any, default: Any) -> bool:
  """Whether a value is the default of its argument."""
  return x is default or (isinstance(x, _PLAIN) and x == default)


def _is_function(x: Any) -> bool:
  return callable(x) and hasattr(x, '__name__')


def _text_of_array(x: Any) -> str:
  """The value of a scalar; dtype, shape and digest of an array."""
  if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  array = np.asarray(x)
  if array.shape == ():
    return f'{array.dtype} {array.item()!r}'
  content = np.ascontiguousarray(array)
  held = repr(array.tolist()).encode() if array.dtype.hasobject else content.tobytes()
  return f'{array.dtype}{list(array.shape)} {_digest(held)}'


def _digest(content: str | bytes) -> str:
  content = content.encode() if isinstance(content, str) else content
  return hashlib.sha256(content).hexdigest()[:16]
