"""Weights of a PyTorch module as parameters of the same network here."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core.types import Model, Params
from fesem_jax.tasks.targets import finite_float32
from fesem_jax.utils.errors import check

# Parameter -> name in PyTorch, in its order.
_TORCH = {
  'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias',
  'mean': 'running_mean', 'var': 'running_var',
}  # fmt: skip
# Name in PyTorch -> parameter, the first that the layer has.
_NAMES = {
  'weight': ('kernel', 'scale', 'embedding'),
  'running_mean': ('mean',),
  'running_var': ('var',),
  'weight_ih': ('kernel',),
  'weight_hh': ('recurrent',),
  'bias_ih': ('bias',),
}


def from_state_dict(model: Model, state: Mapping[str, np.ndarray]) -> Params:
  """Parameters of a model from the `state_dict` of the same network in PyTorch.

  Each layer, in the order in which it runs (of an NNX module, is defined), takes the
  first module of fitting shapes that no earlier one took. Compare logits to verify that
  both networks agree. `state` maps names, as conv1.weight, to arrays. Raises
  `UserError` naming the layer that no module fits, or modules that no layer takes.
  """
  modules: dict[str, dict[str, np.ndarray]] = {}
  for name, x in state.items():
    module, _, part = name.replace('/', '.').rpartition('.')
    part, _, number = part.partition('_l')  # Of a recurrent layer.
    if part != 'num_batches_tracked':
      arrays = modules.setdefault(f'{module} {number}'.strip(), {})
      arrays[part] = finite_float32(x, name)
  layers = _layers(model)
  params: dict[tuple[str, ...], np.ndarray] = {}
  channels = 1  # Of the last convolution, if a dense layer reads it next.
  for path, shapes in layers.items():
    converted = {m: _layer(arrays, shapes, channels) for m, arrays in modules.items()}
    fitting = [m for m, x in converted.items() if jax.tree.map(np.shape, x) == shapes]
    check(fitting, f'state_dict: no module fits the layer {"/".join(path)}, {shapes}')
    del modules[fitting[0]]
    params |= {(*path, name): x for name, x in converted[fitting[0]].items()}
    kernel = shapes.get('kernel', (channels,))
    channels = 1 if len(kernel) == 2 else kernel[-1]
  check(not modules, f'state_dict: the model lacks {", ".join(modules)}')
  return jax.tree.map(np.ascontiguousarray, unflatten_dict(params))


def _layers(model: Model) -> dict[tuple[str, ...], dict[str, Any]]:
  """Path of each layer, in the order in which they run -> the shapes of its arrays."""
  traced: list[Params] = []  # JAX would return them sorted by name.
  jax.eval_shape(lambda key: traced.append(model.init(key)), jax.random.key(0))
  layers: dict[tuple[str, ...], dict[str, Any]] = {}
  for (*path, name), x in flatten_dict(traced[0]).items():
    layers.setdefault(tuple(path), {})[name] = x.shape
  return layers


def _layer(arrays: Params, shapes: dict[str, Any], channels: int) -> dict[str, Any]:
  """A module's arrays as parameters of a layer, which reads images of `channels`."""
  layer = {}
  for part, x in arrays.items():
    name = next((n for n in _NAMES.get(part, ()) if n in shapes), part)
    kernel = name in ('kernel', 'recurrent') and x.ndim > 1
    layer[name] = x.transpose(*range(2, x.ndim), 1, 0) if kernel else x
  dense = layer.get('kernel', np.zeros(0))
  if 'weight' in arrays and dense.ndim == 2 and len(dense) % channels == 0:
    # Here the channels of a pixel are neighbors; in PyTorch the pixels of a channel.
    pixels = dense.reshape(channels, -1, dense.shape[1])
    layer['kernel'] = pixels.transpose(1, 0, 2).reshape(dense.shape)
  if 'bias' in layer and 'bias_hh' in layer:  # Both biases of an LSTM are one here.
    layer['bias'] = layer['bias'] + layer.pop('bias_hh')
  return layer


def to_state_dict(model: Model, params: Params) -> dict[str, np.ndarray]:
  """A model as the arrays of a PyTorch `state_dict` of the same network.

  Modules have the names of the layers; `from_state_dict` reads the arrays back. Raises
  `UserError` on a layer that PyTorch has no module for.
  """
  arrays: dict[str, np.ndarray] = {}
  channels = 1  # Of the last convolution, if a dense layer reads it next.
  for path, layer in _layers(model).items():
    place: Any = params
    for name in path:
      place = place[name]
    supported = layer.keys() <= _TORCH.keys()
    check(supported, f'to_torch: no module of PyTorch for the layer {"/".join(path)}')
    for name in sorted(layer, key=list(_TORCH).index):
      x = np.asarray(place[name])
      if name == 'kernel':
        if x.ndim == 2 and len(x) % channels == 0:
          # In PyTorch the pixels of a channel are neighbors.
          pixels = x.reshape(-1, channels, x.shape[1])
          x = pixels.transpose(1, 0, 2).reshape(x.shape)
        x = x.transpose(x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))
      arrays['.'.join((*path, _TORCH[name]))] = np.ascontiguousarray(x)
    kernel = layer.get('kernel', (channels,))
    channels = 1 if len(kernel) == 2 else kernel[-1]
  return arrays
