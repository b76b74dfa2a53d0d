"""Recognizes plain SGD, w <- w - eta g, by what an optimizer computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.core import hyperparameters
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check


def is_linear(function: Callable[..., Any], *like: Any) -> bool:
  """True if a function of trees shaped as `like` has linear operations only."""

  def transposed(*arguments: Any) -> Any:
    shapes = jax.eval_shape(function, *arguments)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.linear_transpose(function, *arguments)(zeros)

  try:
    jax.eval_shape(transposed, *like)
  except Exception:  # A function that is not understood is not linear.
    return False
  return True


def sgd_rate(optimizer: optax.GradientTransformation, params: Params) -> Any:
  """The learning rate [] of an optimizer that is plain SGD; None if it is not.

  It keeps no state, is linear in the gradients alone, and multiplies all by a number.
  """
  rng = np.random.default_rng(0)

  def drawn(x: Any) -> jax.Array:
    return jnp.asarray(rng.normal(size=(2,) * len(x.shape)), x.dtype)

  def update(gradients: Params) -> Params:
    return optimizer.update(gradients, optimizer.init(gradients))[0]

  try:
    if jax.tree.leaves(jax.eval_shape(optimizer.init, params)):
      return None  # Even a constant state may be one that a later step changes.
    if not is_linear(update, params):
      return None
    with jax.ensure_compile_time_eval():
      gradients = jax.tree.map(drawn, params)
      rate = np.asarray(variable_rate(optimizer, gradients))
      scaled = jax.tree.map(lambda g: -rate * g, gradients)
      same = jax.tree.map(
        lambda u, s: np.allclose(u, s, 1e-6), update(gradients), scaled
      )
  except Exception:  # An optimizer that is not understood is not plain.
    return None
  alike = all(jax.tree.leaves(same))
  return rate if alike and rate > 0 else None


def is_plain_sgd(local: LocalTraining) -> bool:
  with hyperparameters.constants():
    return _rate_of(local) is not None


def _rate_of(local: LocalTraining) -> Any:
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  return sgd_rate(local.optimizer, params)


def learning_rate(local: LocalTraining) -> float:
  """The learning rate of a local optimizer that is plain SGD; else `UserError`."""

  def rate(_: Any) -> float:
    sgd = _rate_of(local)
    check(sgd is not None, 'optimizer: must be plain SGD, as optax.sgd(0.1)')
    return float(sgd)

  return hyperparameters.derived(rate, 'rate')


def variable_rate(
  optimizer: optax.GradientTransformation, params: Params
) -> jax.Array | float:
  """The rate [] of plain SGD as the traced function reads it; see `hyperparameters`."""
  ones = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), params)
  updates, _ = optimizer.update(ones, optimizer.init(ones), ones)
  return -jax.tree.leaves(updates)[0].ravel()[0]


def at_unit_rate(
  gradients: Params, weight: jax.Array, rate: jax.Array | None
) -> tuple[Params, jax.Array]:
  """Moves over steps and rate, and their weight, at a rate [] of 1; 0 for no length."""
  if rate is None:
    return gradients, weight
  divisor = jnp.where(rate > 0, rate, 1.0)
  return jax.tree.map(lambda g: g / divisor, gradients), weight * (rate > 0)
