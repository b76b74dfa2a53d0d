"""Recognizes plain SGD, w <- w - eta g, by what an optimizer computes.

The optimizer's update is traced on the model's own parameters, and its operations are
followed: it is plain SGD if it keeps no state and each layer's update is that layer's
gradient times one constant, the same for all layers. Schedules, momentum, masks,
clipping, weight decay and operations that cannot be followed are not plain, however
alike their first steps are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import core

from fesem_jax.core import hyperparameters
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check

# Operations that hand their operand on as it is.
_SAME = ('copy', 'copy_p', 'optimization_barrier')
# Operations on numbers whose result is a number.
_OF_NUMBERS = (
  'add', 'sub', 'mul', 'div', 'neg', 'abs', 'max', 'min', 'pow', 'integer_pow', 'sqrt',
  'exp', 'log', 'convert_element_type',
)  # fmt: skip
# Calls of another jaxpr, by its name among their parameters.
_CALLS = {'jit': 'jaxpr', 'pjit': 'jaxpr', 'closed_call': 'call_jaxpr'}


class _Scaled(NamedTuple):
  """A gradient times a number."""

  leaf: int  # position of the gradient among the leaves
  factor: Any


# A number that does not depend on gradients, parameters or state; a `_Scaled` gradient;
# None for all others.
_Value = Any


def sgd_rate(optimizer: optax.GradientTransformation, params: Params) -> Any:
  """The learning rate [] of an optimizer that is plain SGD; None if it is not."""
  like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
  try:
    if jax.tree.leaves(jax.eval_shape(optimizer.init, like)):
      return None  # Even a constant state may be one that a later step changes.
    traced, shapes = jax.make_jaxpr(
      lambda g, p: optimizer.update(g, optimizer.init(p), p)[0], return_shape=True
    )(like, like)
    leaves, form = jax.tree.flatten(like)
    update_tree: Any = jax.tree.structure(shapes)
    if update_tree != form:
      return None
    gradients = [_Scaled(i, np.float32(1.0)) for i in range(len(leaves))]
    updates = _follow(traced, [*gradients, *[None] * len(leaves)])
  except Exception:  # An optimizer that is not understood is not plain.
    return None
  rates = []
  for i, update in enumerate(updates):
    if not isinstance(update, _Scaled) or update.leaf != i:
      return None
    rates.append(-update.factor)
  alike = all(rate == rates[0] for rate in rates)
  return rates[0] if rates and alike and rates[0] > 0 else None


def is_plain_sgd(local: LocalTraining) -> bool:
  """True if the optimizer of local training is plain SGD on its model."""
  with hyperparameters.constants():
    return _rate_of(local) is not None


def _rate_of(local: LocalTraining) -> Any:
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  return sgd_rate(local.optimizer, params)


def check_one_rate(local: LocalTraining) -> None:
  """Raises `UserError` if clients have learning rates of their own."""
  alike = local.work is None or local.work.rates is None
  check(alike, 'ClientWork: this method needs one learning rate of all clients')


def learning_rate(local: LocalTraining) -> float:
  """The learning rate of a local optimizer that is plain SGD; else `UserError`."""
  check_one_rate(local)

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


def _follow(traced: core.ClosedJaxpr, inputs: list[_Value]) -> list[_Value]:
  """The values of a jaxpr's results."""
  environment: dict[Any, _Value] = dict(zip(traced.jaxpr.invars, inputs, strict=True))
  for name, constant in zip(traced.jaxpr.constvars, traced.consts, strict=True):
    environment[name] = np.asarray(constant) if np.ndim(constant) == 0 else None

  def value(name: Any) -> _Value:
    if isinstance(name, core.Literal):
      return np.asarray(name.val) if np.ndim(name.val) == 0 else None
    return environment[name]

  for equation in traced.jaxpr.eqns:
    results = _result(equation, [value(x) for x in equation.invars])
    environment.update(zip(equation.outvars, results, strict=True))
  return [value(name) for name in traced.jaxpr.outvars]


def _result(equation: Any, values: list[_Value]) -> list[_Value]:
  """The values of an operation's results."""
  name, nothing = equation.primitive.name, [None] * len(equation.outvars)
  if name in _CALLS:
    return _follow(equation.params[_CALLS[name]], values)
  if name in _SAME:
    return values
  if any(value is None for value in values):
    return nothing
  if not any(isinstance(value, _Scaled) for value in values):
    return _constant(equation, values)
  if name == 'neg':
    return [_times(values[0], np.float32(-1.0))]
  if name == 'mul':
    return [_times(*values)]
  if name == 'div' and not isinstance(values[1], _Scaled):
    return [_times(values[0], np.float32(1.0) / values[1])]
  if name == 'convert_element_type':
    same_dtype = equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype
    return values if same_dtype else nothing
  return nothing


def _times(a: Any, b: Any) -> _Value:
  """A scaled gradient times a number, in either order."""
  if isinstance(a, _Scaled) and isinstance(b, _Scaled):
    return None
  scaled, number = (a, b) if isinstance(a, _Scaled) else (b, a)
  return scaled._replace(factor=np.float32(scaled.factor * number))


def _constant(equation: Any, values: list[Any]) -> list[_Value]:
  """The result of an operation on numbers alone, where it is known to be a number."""
  name = equation.primitive.name
  if name == 'broadcast_in_dim':
    return [values[0]]  # Still one number, however often it stands there.
  if name not in _OF_NUMBERS or any(np.ndim(x.aval) for x in equation.invars):
    return [None] * len(equation.outvars)
  with jax.ensure_compile_time_eval():
    value = equation.primitive.bind(*map(jnp.asarray, values), **equation.params)
  return [np.asarray(value)]


def at_unit_rate(
  gradients: Params, weight: jax.Array, rate: jax.Array | None
) -> tuple[Params, jax.Array]:
  """Gradients from the moves of steps, and their weight, at a rate [] of 1.

  `gradients` are moves over the number of steps and the learning rate; for `rate`, see
  `LocalTraining.rate`. Steps of length 0 get the weight 0.
  """
  if rate is None:
    return gradients, weight
  divisor = jnp.where(rate > 0, rate, 1.0)
  return jax.tree.map(lambda g: g / divisor, gradients), weight * (rate > 0)
