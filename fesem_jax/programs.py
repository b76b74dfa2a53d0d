"""Compiled programs, kept for further runs of the same shapes."""

from collections.abc import Callable, Hashable
from typing import Any

import jax


class Programs:
  """What a run compiles; runs that share it compile each program once.

  All seeds of a method run in the same programs: its data differ in content only,
  and `ClientInfo` is equal for equally many clients.
  """

  def __init__(self) -> None:
    self._held: dict[Hashable, Any] = {}

  def once(self, key: Hashable, make: Callable[[], Any], *args: Any) -> Any:
    """What `make` returned first for this key and arguments shaped like `args`."""
    leaves, structure = jax.tree.flatten(args)
    describe = lambda x: (x.shape, x.dtype, getattr(x, 'sharding', None))
    full = (key, structure, tuple(map(describe, leaves)))
    if full not in self._held:
      self._held[full] = make()
    return self._held[full]

  def compiled(
    self, key: Hashable, fn: Callable[..., Any], *args: Any, **options: Any
  ) -> Any:
    """`jax.jit(fn, **options)`, compiled for the shapes and places of `args`.

    Args:
      key: names the function; two functions of one key must do the same.
      fn: to compile.
      *args: as it will be called.
      **options: of `jax.jit`.
    """
    compile_it = lambda: jax.jit(fn, **options).lower(*args).compile()
    return self.once(key, compile_it, *args)
