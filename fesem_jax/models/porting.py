"""Weights of a PyTorch module as parameters of the same network here."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core.types import Model, Params
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import check

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
  both networks agree.

  Args:
    model: of `models.build` or `models.from_flax`.
    state: name, as conv1.weight or conv1/weight -> array, in PyTorch's order, which
      files of safetensors do not keep.

  Raises:
    UserError: naming the layer that no module fits, or modules that no layer takes.
  """
  modules: dict[str, dict[str, np.ndarray]] = {}
  for name, x in state.items():
    module, _, part = name.replace('/', '.').rpartition('.')
    part, _, number = part.partition('_l')  # Of a recurrent layer.
    if part != 'num_batches_tracked':
      arrays = modules.setdefault(f'{module} {number}'.strip(), {})
      arrays[part] = array_checks.weights(x, name)
  traced: list[Params] = []  # JAX would return them sorted by name.
  jax.eval_shape(lambda key: traced.append(model.init(key)), jax.random.key(0))
  layers: dict[tuple[str, ...], dict[str, Any]] = {}
  for (*path, name), x in flatten_dict(traced[0]).items():
    layers.setdefault(tuple(path), {})[name] = x.shape
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
