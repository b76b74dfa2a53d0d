"""The input of a layer: the representation by the layers before it."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from flax.core.tracers import current_trace

from fesem_jax.utils.errors import check


def with_inputs_of(
  layer: str, apply: Callable[..., jax.Array], *args: Any
) -> tuple[jax.Array, jax.Array]:
  """A model's outputs, and the inputs [B, F] that one of its layers gets.

  `apply` is `Model.apply` or `apply_train`, and `args` are its arguments. Raises
  `UserError` unless a Linen module calls `layer` once with one vector for each example.
  """
  outside, seen = current_trace(), list[Any]()

  def intercept(
    call: Callable[..., Any],
    inputs: Any,
    named: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    if context.module.path == (layer,) and context.method_name == '__call__':
      seen.append(inputs[0] if inputs and current_trace() == outside else None)
    return call(*inputs, **named)

  with nn.intercept_methods(intercept):
    outputs = apply(*args)
  once = len(seen) == 1 and getattr(seen[0], 'ndim', 0) == 2
  check(once, f'{layer}: must be called once, with one vector for each example')
  return outputs, seen[0]
