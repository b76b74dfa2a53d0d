"""Initialization of models: as in Flax's layers by default, or as in PyTorch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.models.layers import EMBEDDING
from fesem_jax.models.recurrent import RECURRENT, RECURRENT_BIAS

# Path of each parameter -> the parameter.
_Flat = dict[tuple[str, ...], jax.Array]


def with_pytorch_init(model: Model) -> Model:
  """A model whose layers have PyTorch's default initialization.

  Kernels [..., I, O] and biases [O] of dense layers and convolutions are uniform in
  (-1 / sqrt(n), 1 / sqrt(n)) with n inputs of a unit; so are those of recurrent layers,
  with n the width of the states and the sum of PyTorch's two biases. Embeddings are
  standard normal. Other parameters, such as normalizations', keep their start.
  """

  def init(key: jax.Array) -> Params:
    params = flatten_dict(model.init(key))
    kernels = sorted(path for path in params if path[-1] == KERNEL)
    for i, path in enumerate(kernels):
      if (*path[:-1], RECURRENT) in params:
        params |= _recurrent(params, path[:-1], jax.random.fold_in(key, i))
        continue
      shape = params[path].shape
      bound = (params[path].size / shape[-1]) ** -0.5
      names = [(*path[:-1], name) for name in (KERNEL, 'bias')]
      for j, name in enumerate(x for x in names if x in params):
        layer_key = jax.random.fold_in(jax.random.fold_in(key, i), j)
        params[name] = jax.random.uniform(
          layer_key, params[name].shape, params[name].dtype, -bound, bound
        )
    tables = sorted(path for path in params if path[-1] == EMBEDDING)
    for i, path in enumerate(tables, start=len(kernels)):
      layer_key, x = jax.random.fold_in(key, i), params[path]
      params[path] = jax.random.normal(layer_key, x.shape, x.dtype)
    return unflatten_dict(params)

  return model._replace(init=init)


def _recurrent(params: _Flat, path: tuple[str, ...], key: jax.Array) -> _Flat:
  width = params[*path, RECURRENT].shape[0]

  def draw(i: int, shape: tuple[int, ...]) -> jax.Array:
    bound = width**-0.5
    layer_key = jax.random.fold_in(key, i)
    return jax.random.uniform(layer_key, shape, jnp.float32, -bound, bound)

  arrays = {name: x for name, x in params.items() if name[:-1] == path}
  out = {name: draw(i, x.shape) for i, (name, x) in enumerate(sorted(arrays.items()))}
  second = draw(len(out), out[*path, 'bias'].shape)
  if (*path, RECURRENT_BIAS) in out:  # The second bias of a GRU's new gate stays apart.
    second = second.at[-width:].set(0.0)
  return out | {(*path, 'bias'): out[*path, 'bias'] + second}


INITIALIZERS: dict[str, Callable[[Model], Model]] = {
  'flax': lambda model: model,
  'pytorch': with_pytorch_init,
}
