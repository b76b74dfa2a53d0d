"""Compiled programs, kept so that further runs of the same shapes can share them."""

from collections.abc import Callable, Hashable
from typing import Any

import jax

from fesem_jax import waits

# First of a program's key -> what the program does.
_WAITS: dict[Any, str] = {
  'init': 'the start',
  'step': 'a round',
  'measure': 'the evaluation',
  'assignment': 'the clusters',
  'unseen': 'the evaluation of unseen clients',
  'portrait': 'the local models for the figures',
}


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
      key: names the function; two functions of one key must do the same. What a wait
        for it is called goes by the first of it, see `_WAITS`.
      fn: the function to compile.
      *args: arguments like those that it will be called with.
      **options: of `jax.jit`.

    Returns:
      The compiled function.
    """

    def compile_now():
      first = key[0] if isinstance(key, tuple) else key
      with waits.told(f'compiling {_WAITS.get(first, "a program")}'):
        return jax.jit(fn, **options).lower(*args).compile()

    return self.once(key, compile_now, *args)
