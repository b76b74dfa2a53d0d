"""Functions that a traced function calls."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def called_by(equation: Any) -> Iterator[tuple[Jaxpr, Sequence[Any]]]:
  """The functions that an operation of a jaxpr calls, and the constants of each."""
  for value in jax.tree.leaves(
    list(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
  ):
    if isinstance(value, ClosedJaxpr):
      yield value.jaxpr, value.consts
    elif isinstance(value, Jaxpr):
      yield value, ()
