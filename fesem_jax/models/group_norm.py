"""GroupNorm in place of a module's BatchNorm, whose statistics cannot be averaged."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from fesem_jax.utils.errors import UserError, check_at_least


class _GroupNormalized(nn.Module):
  """A module whose BatchNorm layers normalize in groups; layers keep their names."""

  module: nn.Module
  groups: int  # see `with_group_norm`

  def setup(self) -> None:
    nn.share_scope(self, self.module)

  def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    with nn.intercept_methods(functools.partial(_instead, self.groups)):
      return self.module(x, *args, **kwargs)


def _instead(
  groups: int,
  own: Callable[..., Any],
  args: Any,
  kwargs: Any,
  context: nn.module.InterceptorContext,
) -> Any:
  """The result of a method of a module, where BatchNorm normalizes in groups."""
  layer = context.module
  if not isinstance(layer, nn.BatchNorm) or context.method_name != '__call__':
    return own(*args, **kwargs)
  return _normalized(layer, groups, args[0] if args else kwargs['x'])


def _normalized(layer: nn.BatchNorm, groups: int, x: jax.Array) -> jax.Array:
  """The result of a BatchNorm that normalizes each example in groups of channels."""
  if layer.axis not in (-1, x.ndim - 1):
    raise UserError(
      f'with_group_norm needs the channels in the last axis; {layer.name or "a layer"} '
      f'normalizes axis {layer.axis}.'
    )
  channels = x.shape[-1]
  y = nn.GroupNorm(
    math.gcd(groups, channels),
    epsilon=layer.epsilon,
    dtype=layer.dtype,
    use_bias=False,
    use_scale=False,
    use_fast_variance=layer.use_fast_variance,
    name='in_groups',  # Without parameters.
  )(x)
  if layer.use_scale:
    scale = layer.param('scale', layer.scale_init, (channels,), layer.param_dtype)
    y = y * scale.reshape((1,) * (y.ndim - 1) + (channels,))
  if layer.use_bias:
    bias = layer.param('bias', layer.bias_init, (channels,), layer.param_dtype)
    y = y + bias.reshape((1,) * (y.ndim - 1) + (channels,))
  return y


def with_group_norm(module: nn.Module, groups: int = 2) -> nn.Module:
  """A Linen module with GroupNorm where it has BatchNorm.

  BatchNorm keeps running means and variances, which are no parameters and cannot be
  averaged over clients as such, and lets the examples of a batch influence each other.
  GroupNorm (Wu and He, 2018) normalizes each example on its own. Scales and biases
  keep their names and shapes, so that those of a trained network still fit.

  Args:
    module: e.g. a ResNet with `nn.BatchNorm` layers, however deep inside.
    groups: of channels that are normalized together; layers whose channels it does not
      divide take the largest number that divides both.

  Raises:
    UserError: on less than one group; and, when the module is built, if the channels of
      a BatchNorm are not the last axis.
  """
  check_at_least(1, groups=groups)
  return _GroupNormalized(module, groups)
