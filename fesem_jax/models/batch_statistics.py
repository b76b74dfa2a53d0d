"""Running statistics of batches, as BatchNorm has them, among a model's parameters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from flax import nnx

# The collection of a Linen module that holds them.
COLLECTION = 'batch_stats'


def join(variables: Mapping[str, Any]) -> Params:
  """The parameters and statistics of a Linen module as one tree."""
  params, statistics = variables.get('params', {}), variables.get(COLLECTION, {})
  return tree.merge(params, statistics) if statistics else params


def split(params: Params, statistics: tuple[str, ...]) -> dict[str, Params]:
  """The variables of a Linen module that `join` made one tree of."""
  if not statistics:
    return {'params': params}
  parts = parameter_names.split(params, statistics)
  params, running = map(parameter_names.without_none, parts)
  return {'params': params, COLLECTION: jax.lax.stop_gradient(running)}


def paths(statistics: Params) -> tuple[str, ...]:
  return tuple('/'.join(map(str, path)) for path in flatten_dict(statistics))


def masked_linen(weights: jax.Array) -> Any:
  """Within it, examples of weight 0 do not count in the BatchNorm of Linen modules."""

  def intercept(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    layer = context.module
    if not isinstance(layer, nn.BatchNorm) or context.method_name != '__call__':
      return call(*args, **kwargs)
    x = args[0] if args else kwargs['x']
    mask = _mask(weights, x, kwargs.get('mask'))
    return call(*args, **(kwargs | {'mask': mask}))

  return nn.intercept_methods(intercept)


def mask_nnx(module: 'nnx.Module', weights: jax.Array) -> None:
  """Keeps examples of weight 0 from counting in the BatchNorm of an NNX module."""
  from flax import nnx  # Slow to import.

  for _, layer in nnx.iter_modules(module):
    if isinstance(layer, nnx.BatchNorm):
      object.__setattr__(layer, '__class__', _masked_class(type(layer), weights))


def _masked_class(kind: type, weights: jax.Array) -> type:
  """A class of BatchNorm in which examples of weight 0 do not count."""

  def call(self: Any, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    mask = _mask(weights, x, kwargs.get('mask'))
    return kind.__call__(self, x, *args, **(kwargs | {'mask': mask}))  # type: ignore[operator]

  return type(kind.__name__, (kind,), {'__call__': call})


def _mask(weights: jax.Array, x: jax.Array, layer_mask: Any) -> jax.Array:
  """[B, 1, ...] bool: examples of a batch that count, all of them without weights."""
  first = x.shape[:1] == weights.shape
  check(first, f'BatchNorm: needs examples in the first axis; gets shape {x.shape}')
  counts = (weights > 0) | ~(weights > 0).any()
  mask = counts.reshape(-1, *[1] * (x.ndim - 1))
  return mask if layer_mask is None else mask & layer_mask
