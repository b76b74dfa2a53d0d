"""A model whose loss contrasts its representations with those of two others."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.tracers import current_trace

from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.types import Model, Params
from fesem_jax.utils.errors import check

# Logits [B, L], and cosines [B] to the representations of either model.
_Outputs = tuple[jax.Array, jax.Array, jax.Array]


def contrasted(
  model: Model, layer: str, mu: float, temperature: float, like: Params, unlike: Params
) -> Model:
  """The model with a loss of example s that contrasts its representation of s.

    loss(w; s) + mu l(s)        l(s) = -log(p / (p + q))
                                p = exp(cos(R_w(s), R_like(s)) / temperature)
                                q = exp(cos(R_w(s), R_unlike(s)) / temperature)

  R_w(s) is the input of `layer` of model w, see `with_inputs_of`; its cosine with zeros
  is 0. The models `like` and `unlike` draw no random numbers.
  """

  def outputs(run: Callable[..., jax.Array], params: Params, x: jax.Array) -> _Outputs:
    logits, z = with_inputs_of(layer, run, params, x)
    _, near = with_inputs_of(layer, model.apply, like, x)
    _, far = with_inputs_of(layer, model.apply, unlike, x)
    return logits, _cosine(z, near), _cosine(z, far)

  def apply(params: Params, x: jax.Array) -> Any:
    return outputs(model.apply, params, x)

  def apply_train(params: Params, x: jax.Array, key: jax.Array) -> Any:
    drawing: Any = model.apply_train
    return outputs(lambda p, x: drawing(p, x, key), params, x)

  def loss(outputs: Any, y: jax.Array) -> jax.Array:  # Of `_Outputs`.
    logits, like, unlike = outputs
    contrast = jax.nn.softplus((unlike - like) / variable(temperature))
    return model.loss(logits, y) + variable(mu) * contrast

  draws = model.apply_train is not None
  return Model(model.init, apply, loss, apply_train=apply_train if draws else None)


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
  """[B] float32: cosines of the rows of a and b [B, F]; 0 where one is all zeros."""

  def unit(x: jax.Array) -> jax.Array:
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    nonzero = squares > 0  # Otherwise the gradient of the root is not a number.
    return x * jnp.where(nonzero, jax.lax.rsqrt(jnp.where(nonzero, squares, 1.0)), 0.0)

  return (unit(a) * unit(b)).sum(axis=-1)


def with_inputs_of(
  layer: str, apply: Callable[..., jax.Array], *args: Any
) -> tuple[jax.Array, jax.Array]:
  """A model's outputs, and the inputs [B, F] of `layer`, which must be called once."""
  outer_trace, values = current_trace(), list[Any]()

  def intercept(
    call: Callable[..., Any],
    inputs: Any,
    named: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    if context.module.path == (layer,) and context.method_name == '__call__':
      values.append(inputs[0] if inputs and current_trace() == outer_trace else None)
    return call(*inputs, **named)

  with nn.intercept_methods(intercept):
    outputs = apply(*args)
  once = len(values) == 1 and getattr(values[0], 'ndim', 0) == 2
  check(once, f'{layer}: must be called once, with one vector for each example')
  return outputs, values[0]
