"""Traced functions that take the numbers of a method as arguments."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fesem_jax.core.traced_functions import called_by

# Constants of so many numbers, such as layers that do not train, are given to a program
# at each call: they would make its text long, and its compilation slow.
_MANY = 1024

# Of objects in the memory, and of lines in files.
_ADDRESS = re.compile(r'0x[0-9a-f]+| at [^ ]+:\d+')


class Traced:
  """A function as traced for some arguments, or their shapes, by `jax.jit`.

  The attribute `numbers` has the numbers that it reads besides its arguments: arrays
  [], and large constants, in the order in which it reads them.
  """

  def __init__(self, traced: jax.stages.Traced):
    self.out_info = traced.out_info
    self._jaxpr, self._constants = traced.jaxpr.jaxpr, traced.jaxpr.consts
    self._is_number = [
      isinstance(c, jax.Array) and (c.shape == () or c.size >= _MANY)
      for c in self._constants
    ]
    pairs = list(zip(self._constants, self._is_number, strict=True))
    self.numbers: tuple[jax.Array, ...] = tuple(c for c, n in pairs if n)

  @classmethod
  def of(cls, fn: Callable[..., Any], *args: Any) -> 'Traced':
    """Traces a function."""
    return cls(jax.jit(fn).trace(*args))

  def __call__(self, *args_and_numbers: Any) -> Any:
    """The result of the function for some arguments, and for numbers."""
    *args, numbers = args_and_numbers
    values = iter(numbers)
    filled = [
      next(values) if n else c
      for c, n in zip(self._constants, self._is_number, strict=True)
    ]
    closed = ClosedJaxpr(self._jaxpr, filled)
    out = jaxpr_as_fun(closed)(*jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(self.out_info), out)

  @functools.cached_property
  def digest(self) -> str:
    """Equal for functions that differ in their numbers alone."""
    # The text does not say which function of the host a callback calls.
    return self._digest([str(id(self))] if 'callback' in self._text else [])

  @functools.cached_property
  def digest_with_numbers(self) -> str:
    """Equal, also in another process, for functions that compute the same."""
    return self._digest(map(_text_of_array, self.numbers))

  @functools.cached_property
  def _text(self) -> str:
    return _ADDRESS.sub('', str(self._jaxpr))

  def _digest(self, others: Iterable[str]) -> str:
    fixed = [c for c, n in zip(self._constants, self._is_number, strict=True) if not n]
    constants = map(_text_of_array, [*fixed, *_constants_within(self._jaxpr)])
    structure = str(jax.tree.structure(self.out_info))
    texts = [self._text, structure, *constants, *others]
    return hashlib.sha256('\n'.join(texts).encode()).hexdigest()


def _constants_within(jaxpr: Jaxpr) -> Iterator[Any]:
  """The constants of the functions that a traced function calls."""
  for equation in jaxpr.eqns:
    for inner, constants in called_by(equation):
      yield from constants
      yield from _constants_within(inner)


def _text_of_array(x: Any) -> str:
  """The value of a scalar; dtype, shape and digest of an array."""
  if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  array = np.ascontiguousarray(x)
  if np.shape(x) == ():
    return f'{array.dtype} {array.item()!r}'
  digest = hashlib.sha256(array.tobytes()).hexdigest()
  return f'{array.dtype}{list(array.shape)} {digest}'
