"""Traced functions that take the numbers of a method as arguments."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fesem_jax.core.field_values import text_of_array
from fesem_jax.core.traced_functions import called_by

# Constants of so many numbers, such as layers that do not train, are given to a program
# at each call: they would make its text long, and its compilation slow.
_MANY = 1024

_ADDRESS = re.compile(r' at 0x[0-9a-f]+')


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

  @property
  def jaxpr(self) -> Jaxpr:
    """The computation."""
    return self._jaxpr

  def same_as(self, other: 'Traced') -> bool:
    """Tells if both compute the same, with the same numbers."""
    mine, its = (list(map(text_of_array, x.numbers)) for x in (self, other))
    return self.digest == other.digest and mine == its

  @functools.cached_property
  def digest(self) -> str:
    """Equal for functions that differ in their numbers alone."""
    text = _ADDRESS.sub('', str(self._jaxpr))
    if 'callback' in text:  # It does not say which function of the host is called.
      text += str(id(self))
    digest = hashlib.sha256(text.encode())
    digest.update(str(jax.tree.structure(self.out_info)).encode())
    fixed = [c for c, n in zip(self._constants, self._is_number, strict=True) if not n]
    for constant in [*fixed, *_constants_within(self._jaxpr)]:
      digest.update(text_of_array(constant).encode())
    return digest.hexdigest()


def _constants_within(jaxpr: Jaxpr) -> Iterator[Any]:
  """The constants of the functions that a traced function calls."""
  for equation in jaxpr.eqns:
    for inner, constants in called_by(equation):
      yield from constants
      yield from _constants_within(inner)
