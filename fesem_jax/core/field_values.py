"""Fields of objects, and values as text."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from fesem_jax.core.own_code import is_own

# Where a method runs and how fast, not what it computes.
_PLACEMENT = {
  'mesh', 'clients_per_chunk', 'clients_per_shared_start', 'shared_start',
  'data_placement',
}  # fmt: skip
# Fields of every Linen module.
_OF_LINEN = (
  'parent', 'name', 'scope', '_parent_ref', '_state', '_compact_name_scope_methods',
)  # fmt: skip
PLAIN = str | bytes | bool | int | float | complex | type(None) | type(...)
_NOTHING = object()


def fields_of(x: Any) -> Iterator[tuple[str, Any]]:
  """Yields the fields of an object, but those that have the defaults of its class."""
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


def defaults_of(kind: type) -> dict[str, Any]:
  """The defaults of the fields of a data class, or the functions that make them."""
  defaults = {}
  for field in dataclasses.fields(kind):
    default = field.default
    if default is dataclasses.MISSING:
      default = field.default_factory
    if default is not dataclasses.MISSING and not _is_of_linen(kind, field.name):
      defaults[field.name] = default
  return defaults


def is_given(kind: type, name: str) -> bool:
  """Tells if an attribute is a field, Python's, or of a class not the user's."""
  if name.startswith('__'):
    return True
  fields = getattr(kind, '__dataclass_fields__', {})
  others = (each for each in kind.__mro__ if not is_own(each))
  given = any(hasattr(other, name) for other in others)
  return given or name in fields or _is_of_linen(kind, name)


def _is_of_linen(kind: type, name: str) -> bool:
  return name in _OF_LINEN and issubclass(kind, nn.Module)


def is_default(x: Any, default: Any) -> bool:
  """Tells if a value is the default of its argument."""
  return x is default or (isinstance(x, PLAIN) and x == default)


def text_of_array(x: Any) -> str:
  """The value of a scalar; dtype, shape and digest of an array."""
  if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  array = np.asarray(x)
  if array.shape == ():
    return f'{array.dtype} {array.item()!r}'
  content = np.ascontiguousarray(array)
  held = repr(array.tolist()).encode() if array.dtype.hasobject else content.tobytes()
  return f'{array.dtype}{list(array.shape)} {digest_of(held)}'


def digest_of(content: str | bytes) -> str:
  """The first 16 hexadecimal digits of the SHA-256 digest of a text or of bytes."""
  content = content.encode() if isinstance(content, str) else content
  return hashlib.sha256(content).hexdigest()[:16]
