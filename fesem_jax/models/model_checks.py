"""Models that clients cannot train, refused before anything is computed."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors

from fesem_jax.core import parameter_names
from fesem_jax.core.types import Model, Params
from fesem_jax.models import training_modes
from fesem_jax.models.batch_statistics import COLLECTION
from fesem_jax.models.output_checks import warn_of_probabilities
from fesem_jax.models.training_modes import Modes
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once


def check_shape(example_shape: Any) -> None:
  """Raises `UserError` unless a shape is a sequence of numbers."""
  if not isinstance(example_shape, Sequence) or isinstance(example_shape, str):
    raise UserError(
      f'{argument("example_shape", example_shape)} must be a sequence, such as '
      '`train.example_shape`.'
    )


def check_model(
  model: Model,
  example_shape: Sequence[int],
  num_classes: int,
  task: str = CLASSIFICATION.name,
  named: str = '`model`',
) -> None:
  """Raises `UserError` unless a model fits data of one shape and task.

  Its functions are traced with two examples; nothing is computed. Besides what
  `check_parameters` checks, the model must be for the task and take such examples, its
  outputs must be floats of the shape that the task needs for L = `num_classes`, and
  each metric must give [B]. Errors call the model `named`.
  """
  if model.task.name != task:
    raise UserError(
      f'{named} is made for {model.task.name}, but the data are for {task}; make it '
      f'with `task={task}`.'
    )
  params = check_parameters(model, named)
  x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
  target_shape = model.task.target_shape(2, tuple(example_shape), num_classes)
  y = jax.ShapeDtypeStruct(target_shape, model.task.target_dtype)
  try:
    logits = jax.eval_shape(model.apply, params, x)
  except (errors.FlaxError, TypeError, ValueError) as e:
    if isinstance(e, UserError):
      raise
    raise UserError(
      f'{named} cannot take examples of shape {tuple(example_shape)}, which the data '
      f'have ({str(e).partition(". (https")[0]}); make it for `train.example_shape`.'
    ) from e
  if not hasattr(logits, 'shape') or logits.dtype not in (jnp.float32, jnp.float64):
    kind = getattr(logits, 'dtype', type(logits).__name__)
    raise UserError(f'{named}: apply gives {kind}, not an array of float32 logits.')
  wanted = model.task.output_shape(2, tuple(example_shape), num_classes)
  if logits.shape != wanted:
    raise UserError(
      f'{named}: two examples have outputs of shape {logits.shape}, not {wanted} as '
      f'data of {num_classes} {model.task.outputs} need.'
    )
  warn_of_probabilities(model, params, x, named)
  if model.apply_train is not None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    trained = _in_training(model, params, x, key)
    if jnp.shape(trained) != logits.shape:
      raise UserError(
        f'{named}: apply_train gives shape {jnp.shape(trained)}, but apply '
        f'{logits.shape}.'
      )
  for name, metric in model.metrics:
    shape = jnp.shape(jax.eval_shape(metric, logits, y))
    if shape != (2,):
      raise UserError(
        f'{named}: the metric {name} gives shape {shape} for two examples; it must '
        'give one figure for each, of shape (2,).'
      )


def _in_training(model: Model, params: Params, x: Any, key: Any) -> Any:
  """The shape of what a model gives in training.

  Raises `UserError` if `Model.statistics` and what `apply_train` gives do not agree.
  """
  assert model.apply_train is not None
  if not model.statistics:
    return jax.eval_shape(model.apply_train, params, x, key)
  weights = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
  outputs = jax.eval_shape(model.apply_train, params, x, key, weights)
  old = parameter_names.split(params, model.statistics)[1]
  old = parameter_names.without_none(old)
  if not (isinstance(outputs, tuple) and len(outputs) == 2):
    raise UserError(
      'The `apply_train` of a model with `statistics` must return logits and, in a '
      'tree of the parameters, the new statistics.'
    )
  if _kinds(outputs[1]) != _kinds(old):
    raise UserError(
      'The `apply_train` of a model must return new values of its `statistics` alone, '
      f'in the shapes and dtypes that they have: {", ".join(model.statistics)}.'
    )
  return outputs[0]


def _kinds(params: Params) -> Any:
  leaves, structure = jax.tree.flatten(params)
  return structure, [(x.shape, x.dtype) for x in leaves]


def check_parameters(model: Model, named: str = '`model`') -> Params:
  """The shapes and dtypes of a model's parameters.

  Raises `UserError`, which calls the model `named`, if there are none; if they are a
  bare array; or if one of them is no array, not float32, or holds no numbers.
  """

  def init(key: jax.Array) -> Params:
    params = model.init(key)
    for name, leaf in _by_name(params):
      if not hasattr(leaf, 'dtype'):  # JAX takes a Python number; stacks do not.
        raise UserError(
          f'{named}: the parameter {name} is {type(leaf).__name__}, not an array.'
        )
    return params

  params = jax.eval_shape(init, jax.random.key(0))
  leaves = _by_name(params)
  if not leaves:
    raise UserError(f'{named} has no parameters, so there is nothing to train.')
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


def as_taken(x: jax.Array, dtype: Any) -> jax.Array:
  """Examples as a module takes them: float32 as they are, or rounded to integers."""
  return x if dtype == jnp.float32 else jnp.round(x).astype(dtype)


def in_float32(outputs: Any) -> jax.Array:
  """Outputs of a module as losses and their sums need them, float32.

  A module of `dtype=jnp.bfloat16` gives bfloat16, in which 256 + 1 is 256.
  """
  outputs = jnp.asarray(outputs)
  half = jnp.issubdtype(outputs.dtype, jnp.floating) and outputs.dtype.itemsize < 4
  return outputs.astype(jnp.float32) if half else outputs


def check_linen(
  module: nn.Module, example_shape: Sequence[int], dtype: Any = jnp.float32
) -> Modes:
  """The arguments of a Linen module, if it is a function that clients can train.

  The module maps [B, *example_shape] of `dtype` to logits. Raises `UserError` if it
  needs arguments but the examples and whether it trains, keeps state besides its
  parameters and statistics of batches, normalizes by those of the batch in evaluation,
  or draws random numbers in evaluation.
  """
  name = type(module).__name__
  modes = training_modes.of_call(name, module.__call__)
  drops = []

  def intercept(
    own: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    if not isinstance(context.module, nn.Dropout) or not context.module.rate:
      return own(*args, **kwargs)
    drops.append(context.module)
    try:
      return own(*args, **kwargs)
    except ValueError as e:  # It was not told.
      raise training_modes.always_random(name) from e

  x = jax.ShapeDtypeStruct((1, *example_shape), dtype)

  def function(mode: dict[str, Any]) -> Callable[..., Any]:
    # The statistics of batches change in training alone.
    changes = COLLECTION in variables and mode is not modes.evaluate
    mutable = [COLLECTION] if changes else False
    return lambda v, x: module.apply(v, x, **mode, mutable=mutable)

  def draws(variables: Any, mode: dict[str, Any]) -> bool:
    try:
      jax.eval_shape(function(mode), variables, x)
    except errors.ModifyScopeVariableError as e:
      raise UserError(
        f'{name} normalizes by the statistics of the batch in evaluation too; give '
        '__call__ an argument train=False and hand it on: '
        'nn.BatchNorm(use_running_average=not train).'
      ) from e
    except errors.InvalidRngError:
      return True
    return False

  with nn.intercept_methods(intercept):
    variables = jax.eval_shape(
      lambda key, x: module.init(key, x, **modes.evaluate), jax.random.key(0), x
    )
    check_only_parameters(name, set(variables) - {'params', COLLECTION})
    if draws(variables, modes.evaluate):
      raise training_modes.always_random(name)
    if COLLECTION in variables:
      _warn_of_fixed_statistics(module, modes.train or {}, variables, x)
    if modes.train and draws(variables, modes.train):
      return modes
    once = not modes.train or same_function(
      function(modes.evaluate),
      function(modes.train or {}),
      variables,
      x,
    )
  if drops:  # Deterministic in training as well: it would have no effect, unsaid.
    raise training_modes.always_random(name)
  if not once:  # Another function in training, although it draws nothing.
    return modes
  return training_modes.of_one_function(modes, module.__call__)


def _warn_of_fixed_statistics(
  module: nn.Module, mode: dict[str, Any], variables: Any, x: Any
) -> None:
  """Says once that a module in training leaves its statistics of batches as they are.

  `mode` are the arguments of its call in training.
  """

  def statistics(v: Any, x: Any, key: jax.Array) -> Any:
    rngs = {'dropout': key}
    return module.apply(v, x, **mode, mutable=[COLLECTION], rngs=rngs)[1]

  try:
    traced = jax.make_jaxpr(statistics)(variables, x, jax.random.key(0)).jaxpr
  except errors.InvalidRngError:  # Layers of the user's own draw otherwise.
    return
  if all(new in traced.invars for new in traced.outvars):
    warn_once(
      f'{type(module).__name__} has BatchNorm that normalizes by its running '
      'statistics in training too, so that they stay as they start; unless they are of '
      'a trained model, give __call__ an argument train=False and hand it on: '
      'nn.BatchNorm(use_running_average=not train).'
    )


def same_function(
  one: Callable[..., Any], other: Callable[..., Any], *args: Any
) -> bool:
  """True if two functions compute the same, operation by operation."""
  a, b = (jax.make_jaxpr(fn)(*args) for fn in (one, other))
  return str(a) == str(b) and all(
    x is y or np.array_equal(x, y) for x, y in zip(a.consts, b.consts, strict=True)
  )


def check_only_parameters(name: str, extra: set[str]) -> None:
  """Raises `UserError` if module `name` keeps `extra` state."""
  if extra:
    raise UserError(
      f'{name} keeps {sorted(extra)} besides its parameters; only parameters, and the '
      'statistics of BatchNorm, can be averaged.'
    )
