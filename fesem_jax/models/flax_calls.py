"""How Flax modules are called: training mode, dtypes of examples and of outputs."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Argument -> its value in training.
_ARGUMENTS = {'train': True, 'training': True, 'deterministic': False}


class Modes(NamedTuple):
  """Keyword arguments of a module's call beside the examples."""

  evaluate: dict[str, Any]
  train: dict[str, Any]


def call_modes(call: Callable[..., Any]) -> Modes:
  """The arguments by which a module's call takes whether it trains."""
  names = _ARGUMENTS.keys() & inspect.signature(call).parameters.keys()
  train: dict[str, Any] = {name: _ARGUMENTS[name] for name in sorted(names)}
  return Modes({name: not value for name, value in train.items()}, train)


def to_dtype(x: jax.Array, dtype: Any) -> jax.Array:
  """Examples as a module takes them: float32 as they are, or rounded to integers."""
  return x if dtype == jnp.float32 else jnp.round(x).astype(dtype)


def to_float32(outputs: Any) -> jax.Array:
  """Outputs of a module as float32: in bfloat16, sums of losses would end at 256."""
  outputs = jnp.asarray(outputs)
  half = jnp.issubdtype(outputs.dtype, jnp.floating) and outputs.dtype.itemsize < 4
  return outputs.astype(jnp.float32) if half else outputs


def is_same(one: Callable[..., Any], other: Callable[..., Any], *args: Any) -> bool:
  """True if two functions compute the same, operation by operation."""
  a, b = (jax.make_jaxpr(fn)(*args) for fn in (one, other))
  return str(a) == str(b) and all(
    x is y or np.array_equal(x, y) for x, y in zip(a.consts, b.consts, strict=True)
  )
