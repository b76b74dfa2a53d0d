"""A model beside two others that it is contrasted with, as one model with a loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.types import Model, Params
from fesem_jax.models.representations import with_inputs_of

# Names of the three models among the parameters: the one that learns, and the two that
# its representations are to be like and unlike.
LEARNS, LIKE, UNLIKE = 'learns', 'like', 'unlike'

# Logits [B, L], and cosines [B] to the representations of either model.
_Outputs = tuple[jax.Array, jax.Array, jax.Array]


def contrasted(model: Model, layer: str, mu: float, temperature: float) -> Model:
  """A model of three, whose loss of an example s has a contrast of representations.

    loss(w; s) + mu l(s)        l(s) = -log(p / (p + q))
                                p = exp(cos(R_w(s), R_like(s)) / temperature)
                                q = exp(cos(R_w(s), R_unlike(s)) / temperature)

  R_w(s) is what `layer` of model w gets of s, see `with_inputs_of`. The cosine with a
  representation that is all zeros is 0. `like` and `unlike` draw no random numbers. The
  model is for local training alone; its `init` is that of one.
  """

  def outputs(run: Callable[..., jax.Array], params: Params, x: jax.Array) -> _Outputs:
    logits, own = with_inputs_of(layer, run, params[LEARNS], x)
    _, like = with_inputs_of(layer, model.apply, params[LIKE], x)
    _, unlike = with_inputs_of(layer, model.apply, params[UNLIKE], x)
    return logits, _cosine(own, like), _cosine(own, unlike)

  def apply(params: Params, x: jax.Array) -> Any:
    return outputs(model.apply, params, x)

  def apply_train(params: Params, x: jax.Array, key: jax.Array) -> Any:
    drawing: Any = model.apply_train
    return outputs(lambda p, x: drawing(p, x, key), params, x)

  def loss(found: Any, y: jax.Array) -> jax.Array:  # Of `_Outputs`.
    logits, like, unlike = found
    contrast = jax.nn.softplus((unlike - like) / variable(temperature))
    return model.loss(logits, y) + variable(mu) * contrast

  draws = model.apply_train is not None
  return Model(model.init, apply, loss, apply_train=apply_train if draws else None)


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
  """[B] float32: cosines of the rows of a and b [B, F]; 0 where one is all zeros."""

  def unit(x: jax.Array) -> jax.Array:
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    there = squares > 0  # Else the gradient of the root is not a number.
    return x * jnp.where(there, jax.lax.rsqrt(jnp.where(there, squares, 1.0)), 0.0)

  return (unit(a) * unit(b)).sum(axis=-1)
