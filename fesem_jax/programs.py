"""Compiled programs, kept so that further runs of the same shapes can share them."""

from collections.abc import Callable, Hashable
from typing import Any

import jax


class Programs:
  """The compiled programs of a run; runs that share them compile each only once.

  All seeds of an algorithm run in the same programs: their data differ in content
  only, and `ClientInfo` is equal for equally many clients.
  """

  def __init__(self) -> None:
    self._held: dict[Hashable, Any] = {}

  def once(self, key: Hashable, make: Callable[[], Any], *args: Any) -> Any:
    """What `make` returned when it was first called for a key and such arguments.

    Args:
      key: names what is made.
      make: called unless something is held for this key and for arguments of the
        structure, shapes, dtypes and shardings of `args`.
      *args: trees of arrays.
    """
    leaves, structure = jax.tree.flatten(args)

    def describe(x):
      return (x.shape, x.dtype, getattr(x, 'sharding', None))

    full = (key, structure, tuple(map(describe, leaves)))
    if full not in self._held:
      self._held[full] = make()
    return self._held[full]

  def compiled(
    self, key: Hashable, fn: Callable[..., Any], *args: Any, **options: Any
  ) -> Any:
    """`jax.jit(fn, **options)`, compiled for the shapes and shardings of `args`.

    Args:
      key: names the function; two functions of one key must do the same.
      fn: the function to compile.
      *args: arguments like those that it will be called with.
      **options: of `jax.jit`.

    Returns:
      The compiled function.
    """
    return self.once(key, lambda: jax.jit(fn, **options).lower(*args).compile(), *args)
