"""Hyperparameters as arguments of compiled programs, so that others compile nothing."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def variable(value: float) -> jax.Array | float:
  """A number that a traced function reads, and that may be another one next time.

  A Python number becomes part of the program. The array that this gives, made outside
  of what is traced, is a constant that `Programs` takes out of the function and hands
  to the program as an argument.

  Args:
    value: of a hyperparameter.

  Returns:
    [] of the type that JAX gives Python numbers; 0 as it is, since programs without a
    penalty, say, differ from those with one.
  """
  if value == 0:
    return value
  with jax.ensure_compile_time_eval():
    return jnp.asarray(value)


def optimizer(
  make: Callable[..., optax.GradientTransformation], *numbers: float, **named: float
) -> optax.GradientTransformation:
  """An Optax optimizer whose numbers are variables, see `variable`.

  Args:
    make: e.g. `optax.sgd`.
    *numbers: its arguments.
    **named: further ones by name.
  """

  def made() -> optax.GradientTransformation:
    by_name = {name: variable(number) for name, number in named.items()}
    return make(*map(variable, numbers), **by_name)

  def init(params):
    return made().init(params)

  def update(gradients, state, params=None):
    return made().update(gradients, state, params)

  return optax.GradientTransformation(init, update)
