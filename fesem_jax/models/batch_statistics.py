"""Running statistics of batches, as BatchNorm has them, among a model's parameters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import UserError

if TYPE_CHECKING:
  from flax import nnx

# The collection of a Linen module that holds them.
COLLECTION = 'batch_stats'


def joined(name: str, variables: Mapping[str, Any]) -> Params:
  """The parameters and statistics of Linen module `name` as one tree.

  Raises `UserError` if both have one path.
  """
  params, statistics = variables.get('params', {}), variables.get(COLLECTION, {})
  shared = sorted(flatten_dict(params).keys() & flatten_dict(statistics).keys())
  if shared:
    raise UserError(
      f'{name} has a parameter and a statistic both called {"/".join(shared[0])}; '
      'rename one of them.'
    )
  return tree.merge(params, statistics) if statistics else params


def apart(params: Params, statistics: tuple[str, ...]) -> dict[str, Params]:
  """The variables of a Linen module that `joined` made one tree of."""
  if not statistics:
    return {'params': params}
  parts = parameter_names.split(params, statistics)
  params, running = map(parameter_names.without_none, parts)
  return {'params': params, COLLECTION: jax.lax.stop_gradient(running)}


def paths(statistics: Params) -> tuple[str, ...]:
  """The paths of statistics, as norm/mean."""
  return tuple('/'.join(map(str, path)) for path in flatten_dict(statistics))


def counting(weights: jax.Array) -> Any:
  """Within it, examples of weight 0 do not count in the BatchNorm of Linen modules.

  Of a batch without weights [B], all count.
  """

  def intercept(
    own: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    layer = context.module
    if not isinstance(layer, nn.BatchNorm) or context.method_name != '__call__':
      return own(*args, **kwargs)
    x = args[0] if args else kwargs['x']
    mask = _mask(weights, x, kwargs.get('mask'), layer.name or 'BatchNorm')
    return own(*args, **(kwargs | {'mask': mask}))

  return nn.intercept_methods(intercept)


def count_in(module: 'nnx.Module', weights: jax.Array) -> None:
  """Keeps examples of weight 0 from counting in the BatchNorm of an NNX module."""
  from flax import nnx  # Slow to import.

  for path, layer in nnx.iter_modules(module):
    if isinstance(layer, nnx.BatchNorm):
      named = '/'.join(map(str, path)) or 'BatchNorm'
      object.__setattr__(layer, '__class__', _counting(type(layer), weights, named))


def _counting(kind: type, weights: jax.Array, named: str) -> type:
  """A class of BatchNorm in which examples of weight 0 do not count."""

  def call(self: Any, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    mask = _mask(weights, x, kwargs.get('mask'), named)
    return kind.__call__(self, x, *args, **(kwargs | {'mask': mask}))  # type: ignore[operator]

  return type(kind.__name__, (kind,), {'__call__': call})


def _mask(weights: jax.Array, x: jax.Array, own: Any, named: str) -> jax.Array:
  """[B, 1, ...] bool: which examples of a batch count, and in the layer's `own` mask.

  Raises `UserError` unless the first axis of x is that of the batch.
  """
  if x.shape[:1] != weights.shape:
    raise UserError(
      f'{named} gets an array of shape {x.shape} of {weights.size} examples; BatchNorm '
      'needs the examples in the first axis, so that those that only fill up a batch '
      'are left out of its statistics.'
    )
  counts = (weights > 0) | ~(weights > 0).any()
  mask = counts.reshape(-1, *[1] * (x.ndim - 1))
  return mask if own is None else mask & own
