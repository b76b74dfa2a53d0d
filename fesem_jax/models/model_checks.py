"""Models that clients cannot train, refused before anything is computed."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors, nnx

from fesem_jax.core.types import Model, Params
from fesem_jax.tasks import CLASSIFICATION, REGRESSION, SEQUENCE
from fesem_jax.utils.errors import UserError


def check_model(
  model: Model,
  example_shape: Sequence[int],
  num_classes: int,
  task: str = CLASSIFICATION.name,
  named: str = '`model`',
) -> None:
  """Raises `UserError` unless a model fits data of one shape and task.

  Its functions are traced with two examples; nothing is computed.

  Args:
    model: see `Model`.
    example_shape: shape of one example.
    num_classes: L, outputs that the data need.
    task: of the data.
    named: how errors call the model.

  Raises:
    UserError: as `check_parameters`; if the model is for another task; if the outputs
      are not floats of the shape that the task needs; or if a metric does not give [B].
  """
  if model.task.name != task:
    raise UserError(
      f'{named} is made for {model.task.name}, but the data are for {task}; make it '
      f'with `task={task}`.'
    )
  params = check_parameters(model, named)
  x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
  target_shape = model.task.target_shape(2, tuple(example_shape), num_classes)
  dtype = jnp.float32 if task == REGRESSION.name else jnp.int32
  y = jax.ShapeDtypeStruct(target_shape, dtype)
  logits = jax.eval_shape(model.apply, params, x)
  if not hasattr(logits, 'shape') or not jnp.issubdtype(logits.dtype, jnp.floating):
    kind = getattr(logits, 'dtype', type(logits).__name__)
    raise UserError(f'{named}: apply gives {kind}, not an array of float32 logits.')
  wanted = model.task.output_shape(2, tuple(example_shape), num_classes)
  if logits.shape != wanted:
    of_what = {REGRESSION.name: 'targets', SEQUENCE.name: 'tokens'}.get(task, 'classes')
    raise UserError(
      f'{named}: two examples have outputs of shape {logits.shape}, not {wanted} as '
      f'data of {num_classes} {of_what} need.'
    )
  for name, metric in model.metrics:
    shape = jnp.shape(jax.eval_shape(metric, logits, y))
    if shape != (2,):
      raise UserError(
        f'{named}: the metric {name} gives shape {shape} for two examples; it must '
        'give one figure for each, of shape (2,).'
      )


def check_parameters(model: Model, named: str = '`model`') -> Params:
  """The shapes and dtypes of a model's parameters.

  Args:
    model: see `Model`.
    named: how errors call the model.

  Raises:
    UserError: if there are none; if they are a bare array; or if one of them is no
      array, not float32, or holds no numbers.
  """

  def made(key: jax.Array) -> Params:
    params = model.init(key)
    for name, leaf in _by_name(params):
      if not hasattr(leaf, 'dtype'):  # JAX takes a Python number; stacks do not.
        raise UserError(
          f'{named}: the parameter {name} is {type(leaf).__name__}, not an array.'
        )
    return params

  params = jax.eval_shape(made, jax.random.key(0))
  leaves = _by_name(params)
  if not leaves:
    raise UserError(f'{named} has no parameters, so that there is nothing to train.')
  if params is leaves[0][1]:
    raise UserError(
      f'{named}: init gives a single array; it must give a dict of layers, e.g. '
      "{'logits': {'kernel': kernel}}."
    )
  for name, leaf in leaves:
    if leaf.dtype != jnp.float32:
      advice = 'keep constants out of them'
      if jnp.issubdtype(leaf.dtype, jnp.floating):
        advice = (
          'choose what a Flax layer computes in by its dtype, not its param_dtype'
        )
      raise UserError(
        f'{named}: the parameter {name} is {leaf.dtype}, but parameters are trained '
        f'and averaged in float32; {advice}.'
      )
    if leaf.size == 0:
      raise UserError(
        f'{named}: the parameter {name} has shape {leaf.shape}, which holds no numbers.'
      )
  return params


def _by_name(params: Params) -> list[tuple[str, Any]]:
  """The leaves of a tree, each with its path, as layer/kernel."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  ]


def check_linen(module: nn.Module, example_shape: Sequence[int]) -> None:
  """Raises `UserError` unless a Linen module is a function of parameters and examples.

  Args:
    module: that maps [B, *example_shape] to logits.
    example_shape: shape of one example.

  Raises:
    UserError: if it needs other arguments, keeps state besides its parameters, or has
      Dropout or another layer that draws random numbers.
  """
  name = type(module).__name__
  _check_arguments(name, module.__call__)

  def intercept(
    own: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    # Deterministic as well: it would have no effect on training, unsaid.
    if isinstance(context.module, nn.Dropout) and context.module.rate > 0:
      raise _random(name)
    return own(*args, **kwargs)

  x = jax.ShapeDtypeStruct((1, *example_shape), jnp.float32)
  with nn.intercept_methods(intercept):
    variables = jax.eval_shape(module.init, jax.random.key(0), x)
    _check_only_parameters(name, set(variables) - {'params'})
    try:
      jax.eval_shape(module.apply, variables, x)
    except errors.InvalidRngError as e:
      raise _random(name) from e


def check_nnx(module: nnx.Module) -> None:
  """Raises `UserError` unless an NNX module is a function of parameters and examples.

  Args:
    module: that maps [B, ...] to logits.

  Raises:
    UserError: see `check_linen`.
  """
  name = type(module).__name__
  _check_arguments(name, module.__call__)
  dropouts = [m for _, m in nnx.iter_modules(module) if isinstance(m, nnx.Dropout)]
  state = nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.Param)))
  if any(d.rate > 0 for d in dropouts) or any(
    isinstance(variable, nnx.RngState) for _, variable in state
  ):
    raise _random(name)
  _check_only_parameters(name, {type(variable).__name__ for _, variable in state})


def _check_arguments(name: str, call: Callable[..., Any]) -> None:
  """Raises `UserError` unless module `name` can be called with the examples alone."""
  try:
    inspect.signature(call).bind('x')
  except TypeError as e:
    raise UserError(
      f'{name}.__call__ must take the examples alone ({e}); give its other arguments '
      'defaults, e.g. train=False.'
    ) from e


def _random(name: str) -> UserError:
  return UserError(
    f'{name} has Dropout or another layer that draws random numbers, which local '
    'training does not support; leave the layer out.'
  )


def _check_only_parameters(name: str, extra: set[str]) -> None:
  """Raises `UserError` if module `name` keeps `extra` state."""
  if extra:
    mend = ''
    if extra == {'batch_stats'}:
      mend = (
        ' For BatchNorm, models.with_group_norm(module) puts GroupNorm in its place.'
      )
    raise UserError(
      f'{name} keeps {sorted(extra)} besides its parameters; '
      f'only parameters can be averaged.{mend}'
    )
