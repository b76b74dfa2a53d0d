"""Hyperparameters as arguments of compiled programs, to avoid recompilation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def variable(value: float) -> jax.Array | float:
  """A hyperparameter that is an argument of the compiled program.

  A Python number would become a constant of the program. This function returns an array
  created outside of tracing, which `Programs` hoists out of the traced function and
  passes to the program as an argument.

  Args:
    value: of a hyperparameter.

  Returns:
    [] of JAX's type for Python numbers; 0 is returned unchanged, since programs without
    e.g. a penalty differ from those with one.
  """
  if value == 0:
    return value
  with jax.ensure_compile_time_eval():
    return jnp.asarray(value)


def optimizer(
  make: Callable[..., optax.GradientTransformation], *numbers: float, **named: float
) -> optax.GradientTransformation:
  """An Optax optimizer with hyperparameters as variables; see `variable`.

  Args:
    make: e.g. `optax.sgd`.
    *numbers: its positional arguments.
    **named: its keyword arguments.
  """

  def build() -> optax.GradientTransformation:
    by_name = {name: variable(number) for name, number in named.items()}
    return make(*map(variable, numbers), **by_name)

  def init(params):
    return build().init(params)

  def update(gradients, state, params=None):
    return build().update(gradients, state, params)

  return optax.GradientTransformation(init, update)
