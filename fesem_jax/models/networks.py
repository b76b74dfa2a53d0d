"""Flax modules behind `Model(init, apply)`; layers have names in the order they run."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core.tracers import current_trace

from fesem_jax import tasks
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Model, Params
from fesem_jax.models import batch_statistics, conv, dense_layers
from fesem_jax.models.flax_calls import call_modes, is_same, to_dtype, to_float32
from fesem_jax.models.layers import Conv, Dense, with_channels
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.tasks import Loss
from fesem_jax.utils.ranges import check_choice

# Of CelebA's network.
NORM_GROUPS = 8

# See `Model.apply_with`.
Multiply = Callable[..., jax.Array | None]


class Mlp(nn.Module):
  """Dense layers with ReLU; logistic regression when there is no hidden one."""

  widths: Sequence[int]
  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.widths):
      x = nn.relu(Dense(width, name=f'dense{i}')(x))
    return Dense(self.num_classes, name='logits')(x)


class Cnn(nn.Module):
  """[conv, ReLU, pool 2x2] blocks, one hidden dense layer, logits."""

  features: Sequence[int]
  window: int
  width: int
  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = with_channels(x)
    for i, features in enumerate(self.features):
      layer = Conv(features, self.window, name=f'conv{i}')
      # ReLU after the maximum gives the same, from a quarter of the numbers.
      x = nn.relu(conv.max_pool(layer(x)))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(Dense(self.width, name='dense')(x))
    return Dense(self.num_classes, name='logits')(x)


class EmnistCnn(nn.Module):
  """TFF's EMNIST network without dropout: two 3x3 convolutions, one pool."""

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = with_channels(x)
    x = nn.relu(Conv(32, 3, 'VALID', name='conv0')(x))
    x = Conv(64, 3, 'VALID', name='conv1')(x)
    x = nn.relu(conv.max_pool(x))
    x = nn.relu(Dense(128, name='dense')(x.reshape(x.shape[0], -1)))
    return Dense(self.num_classes, name='logits')(x)


class CelebaCnn(nn.Module):
  """LEAF's CelebA network: four [conv 3x3x32, GroupNorm, pool 2x2, ReLU] blocks."""

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = with_channels(x)
    for i in range(4):
      x = Conv(32, 3, name=f'conv{i}')(x)
      x = nn.GroupNorm(num_groups=NORM_GROUPS, name=f'norm{i}')(x)
      x = nn.relu(conv.max_pool(x, padding='SAME'))
    return Dense(self.num_classes, name='logits')(x.reshape(x.shape[0], -1))


# LeCun et al. take digits of 28 x 28 pixels in a frame of 32 x 32.
_SIDE = 32


class Lenet(nn.Module):
  """LeNet-5 (LeCun et al. 1998) with ReLU and the maximum of 2x2 pixels, and logits."""

  num_classes: int
  # Pads images below 32 pixels by 2 on each side (LeNet-5); otherwise the `SimpleCNN`
  # of Li et al. (2022, NIID-Bench): 44,426 parameters for digits.
  framed: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = with_channels(x)
    framed = self.framed and min(x.shape[1:3]) < _SIDE
    first: conv.Padding = ((2, 2), (2, 2)) if framed else 'VALID'
    for i, (features, padding) in enumerate(((6, first), (16, 'VALID'))):
      layer = Conv(features, 5, padding, name=f'conv{i}')
      # ReLU after the maximum gives the same, from a quarter of the numbers.
      x = nn.relu(conv.max_pool(layer(x)))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate((120, 84)):
      x = nn.relu(Dense(width, name=f'dense{i}')(x))
    return Dense(self.num_classes, name='logits')(x)


# Modules whose layers run one after the other, each on what the one before gives.
_CHAINS = (Mlp, Cnn, EmnistCnn, CelebaCnn, Lenet)


@recorded
def from_flax(
  module: nn.Module | Callable[..., Any],  # (nnx.Rngs) -> nnx.Module
  example_shape: Sequence[int],
  loss: Loss | None = None,
  metrics: Mapping[str, Loss] | None = None,
  task: str = tasks.CLASSIFICATION.name,
) -> Model:
  """Builds a `Model` from a Flax module that treats each example separately.

  Only BatchNorm may mix the examples of a batch, in training. `Model.statistics` names
  its running statistics; examples that fill up a batch do not count in them.

  Layers that draw random numbers, such as dropout, do so in training only: the module's
  call has an argument `train`, `training` or `deterministic`, or an NNX module has
  `train()` and `eval()`. A module that begins with an Embed gets examples as int32.

  Args:
    module: a Linen module that maps [B, *example_shape] to the outputs of the task,
      such as logits [B, L], or a function that makes such an NNX module, e.g.
      `lambda rngs: Net(10, rngs=rngs)`.
    example_shape: shape of one example.
    loss: see `Model`; that of the task by default.
    metrics: functions by name; see `Model`.
    task: a key of `tasks.TASKS`.

  Raises:
    UserError: on an unknown task, or parameters that are not float32.
  """
  check_choice('task', task, tuple(tasks.TASKS))
  chosen = tasks.TASKS[task]
  try:
    model = _flax_model(module, example_shape, np.float32)
  except (TypeError, ValueError) as e:
    if 'integer' not in str(e):
      raise
    model = _flax_model(module, example_shape, np.int32)  # An Embed takes tokens.
  check_parameters(model)
  return model._replace(
    loss=loss or chosen.loss, metrics=tuple((metrics or {}).items()), task=chosen
  )


def _flax_model(
  module: nn.Module | Callable[..., Any],  # (nnx.Rngs) -> nnx.Module
  example_shape: Sequence[int],
  dtype: Any,
) -> Model:
  if isinstance(module, nn.Module):
    model = as_model(module, example_shape, dtype)
  else:
    from fesem_jax.models.nnx_modules import as_nnx_model  # Slow to import.

    model = as_nnx_model(module, example_shape, dtype)
  x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
  jax.eval_shape(lambda key, x: model.apply(model.init(key), x), jax.random.key(0), x)
  return model


def _is_plain_dense(layer: nn.Module) -> bool:
  """True if a layer multiplies in float32, at the precision of local training."""
  return (
    type(layer) is nn.Dense
    and layer.dtype in (None, jnp.float32)
    and layer.param_dtype == jnp.float32
    and layer.precision is None
    and layer.dot_general in (None, dense_layers.dot_general)
    and layer.dot_general_cls is None
    and layer.promote_dtype is nn.Dense.promote_dtype
  )


def as_model(
  module: nn.Module, example_shape: Sequence[int], dtype: Any = np.float32
) -> Model:
  """A Flax module, which takes examples of a `dtype`, as a `Model`; see `from_flax`."""
  modes = call_modes(module.__call__)
  dummy = np.zeros((1, *example_shape), dtype)
  layers: list[str] = []

  def init_module(key: jax.Array) -> Params:
    variables = module.init(key, dummy, **modes.evaluate)
    layers.extend(variables.get('params', {}))  # JAX would return them sorted by name.
    return variables

  shapes = jax.eval_shape(init_module, jax.random.key(0))
  statistics = batch_statistics.paths(shapes.get(batch_statistics.COLLECTION, {}))
  # A kernel of `nn.Conv` has three axes or more: other modules have none to replace.
  convolves = any(x.ndim > 2 for x in jax.tree.leaves(shapes.get('params', {})))
  convolving = conv.for_linen if convolves else contextlib.nullcontext

  variables = functools.partial(batch_statistics.split, statistics=statistics)

  def evaluated(params: Params, x: jax.Array) -> jax.Array:
    x = to_dtype(x, dtype)
    return to_float32(module.apply(variables(params), x, **modes.evaluate))

  def convolved(params: Params, x: jax.Array) -> jax.Array:
    with conv.for_linen():
      return evaluated(params, x)

  def apply_train(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    # One key stands for streams of all names.
    x = to_dtype(x, dtype)
    with convolving():
      return to_float32(module.apply(variables(params), x, **modes.train, rngs=key))

  def apply_batch(
    params: Params, x: jax.Array, key: jax.Array, weights: jax.Array
  ) -> tuple[jax.Array, Params]:
    mutable = [batch_statistics.COLLECTION]
    with convolving(), batch_statistics.masked_linen(weights):
      logits, new = module.apply(
        variables(params), to_dtype(x, dtype), **modes.train, rngs=key, mutable=mutable
      )
    return to_float32(logits), new[batch_statistics.COLLECTION]

  def apply_with(params: Params, x: jax.Array, multiply: Multiply) -> jax.Array:
    outer_trace, roots = current_trace(), list[Any]()

    def runs_once(layer: nn.Module) -> bool:
      """True if a layer runs once, with the parameters at its path in `params`."""
      root = None if layer.scope is None else layer.scope.root
      if not roots:  # The first module that is called is the model.
        roots.append(root)
      # `nn.vmap`, `nn.scan` and the like map over a layer; `apply` within a module has
      # parameters of its own.
      return current_trace() == outer_trace and root is roots[0]

    def intercept(call, args, kwargs, context):
      layer, inputs = context.module, (*args, *kwargs.values())
      product = None
      # Otherwise another interceptor changes what the layer does.
      direct = call is context.orig_method and context.method_name == '__call__'
      if runs_once(layer) and direct and len(inputs) == 1 and _is_plain_dense(layer):
        product = multiply(layer.path, *inputs)
      if product is None:
        return call(*args, **kwargs)
      if not layer.use_bias:
        return product
      bias = layer.get_variable('params', 'bias')
      return product + bias.reshape((1,) * (product.ndim - 1) + bias.shape)

    # What is added last is called by the layer itself, as `alone` asks.
    with convolving(), nn.intercept_methods(intercept):
      return evaluated(params, x)

  def init(key: jax.Array) -> Params:
    variables = module.init(key, dummy, **modes.evaluate)
    return batch_statistics.join(variables)

  chain = tuple(layers) if type(module) in _CHAINS else ()
  apply = convolved if convolves else evaluated
  model = Model(init, apply, layers=chain, apply_with=apply_with)
  if statistics:
    return model._replace(apply_train=apply_batch, statistics=statistics)
  if not modes.train:
    return model
  x, key = jax.ShapeDtypeStruct(dummy.shape, jnp.float32), jax.random.key(0)
  args = jax.eval_shape(init, key), x, key
  draws_nothing = is_same(apply_train, lambda params, x, _: apply(params, x), *args)
  return model if draws_nothing else model._replace(apply_train=apply_train)
