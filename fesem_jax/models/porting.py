"""Weights of a PyTorch module as parameters of the same network here.

PyTorch keeps a dense kernel as [O, I], a convolution's as [O, I, h, w] and images as
[B, C, H, W]; here these are [I, O], [h, w, I, O] and [B, H, W, C]. What differs beside
the order of axes: a dense layer behind convolutions reads the channels of a pixel next
to each other here, and the pixels of a channel there.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.models.recurrent import RECURRENT, RECURRENT_BIAS
from fesem_jax.models.tokens import EMBEDDING
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import check

Path = tuple[str, ...]
Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, np.ndarray]

# Of a recurrent layer in PyTorch, whose arrays end in _l0, _l1 and so on.
_OF_RECURRENT = re.compile(r'(weight_ih|weight_hh|bias_ih|bias_hh)_l(\d+)')
# Running statistics of BatchNorm, and their names in PyTorch.
_STATISTICS = {'mean': 'running_mean', 'var': 'running_var'}


class _Module(NamedTuple):
  """A module of PyTorch, or a layer of a recurrent one."""

  name: str
  arrays: Arrays

  @property
  def shapes(self) -> Shapes:
    return {name: x.shape for name, x in self.arrays.items()}


def from_state_dict(
  model: Model, state: Mapping[str, np.ndarray], in_order: bool = True
) -> Params:
  """Parameters of a model from the `state_dict` of the same network in PyTorch.

  Each layer, in the order in which it runs (of an NNX module, is defined), takes the
  first module of fitting shapes that no earlier one took. Compare logits to verify that
  both networks agree.

  Args:
    model: of `models.build` or `models.from_flax`.
    state: name, as conv1.weight or conv1/weight -> array.
    in_order: whether `state` has PyTorch's order; files of safetensors do not keep it,
      and then modules stand in the order of their names, numbers in them by value.

  Raises:
    UserError: naming the layer that no module fits, or modules that no layer takes.
  """
  modules = _modules(state)
  if not in_order:
    modules.sort(key=lambda module: _natural(module.name))
  out: dict[Path, np.ndarray] = {}
  channels = 1  # Of the last convolution, if a dense layer reads it next.
  for path, shapes in _layers(model).items():
    wanted = _in_pytorch(shapes)
    fitting = [module for module in modules if module.shapes == wanted]
    check(fitting, f'state_dict: no module fits the layer {"/".join(path)}, {wanted}')
    modules.remove(fitting[0])
    kernel = shapes.get(KERNEL, ())
    for name, x in _converted(fitting[0].arrays, shapes, channels).items():
      assert x.shape == shapes[name]
      out[*path, name] = np.ascontiguousarray(x, np.float32)
    channels = kernel[-1] if len(kernel) == 4 else 1 if kernel else channels
  more = ', '.join(module.name for module in modules)
  check(not modules, f'state_dict: has modules that the model lacks: {more}')
  return unflatten_dict(out)


def _modules(state: Mapping[str, np.ndarray]) -> list[_Module]:
  """The modules of a state_dict that hold arrays, in its order."""
  parts: dict[str, Arrays] = {}
  for name, x in state.items():
    module, _, part = name.replace('/', '.').rpartition('.')
    if part == 'num_batches_tracked':
      continue  # Of a momentum that changes, which the model does not have.
    if match := _OF_RECURRENT.fullmatch(part):
      part, module = match[1], f'{module}.{match[2]}'
    parts.setdefault(module, {})[part] = array_checks.weights(
      x, f'{name} in the state_dict'
    )
  return [_Module(name, arrays) for name, arrays in parts.items()]


def _natural(name: str) -> list[tuple[int, str]]:
  """Sorts names by the numbers in them: layer2 before layer10."""
  parts = re.split(r'(\d+)', name)
  return [(int(p), '') if p.isdecimal() else (0, p) for p in parts]


def _layers(model: Model) -> dict[Path, Shapes]:
  """Path of each layer, in the order of `from_state_dict` -> its parameters' shapes."""
  layers: dict[Path, Shapes] = {}

  def init(key: jax.Array) -> Params:
    params = model.init(key)
    # JAX would return them sorted by name.
    for (*path, name), x in flatten_dict(params).items():
      layers.setdefault(tuple(path), {})[name] = x.shape
    return params

  jax.eval_shape(init, jax.random.key(0))
  return layers


def _in_pytorch(shapes: Shapes) -> Shapes:
  """Shapes of the module that is a layer in PyTorch."""
  if EMBEDDING in shapes:
    return {'weight': shapes[EMBEDDING]}
  if RECURRENT in shapes:
    size_in, size = shapes[KERNEL]
    width = shapes[RECURRENT][0]
    of_biases: Shapes = {'bias_ih': (size,), 'bias_hh': (size,)}
    return of_biases | {'weight_ih': (size, size_in), 'weight_hh': (size, width)}
  if 'scale' in shapes:
    weight = shapes['scale']
  else:
    *window, size_in, size_out = shapes[KERNEL]
    weight = (size_out, size_in, *window)
  bias: Shapes = {'bias': shapes['bias']} if 'bias' in shapes else {}
  of_batches = {
    _STATISTICS[name]: shapes[name] for name in _STATISTICS.keys() & shapes.keys()
  }
  return {'weight': weight} | bias | of_batches


def _converted(arrays: Arrays, shapes: Shapes, channels: int) -> dict[str, Any]:
  """A module's arrays as parameters of a layer, which reads images of `channels`."""
  if EMBEDDING in shapes:
    return {EMBEDDING: arrays['weight']}
  if RECURRENT in shapes:
    bias, inside = arrays['bias_ih'], arrays['bias_hh']
    out = {KERNEL: arrays['weight_ih'].T, RECURRENT: arrays['weight_hh'].T}
    if RECURRENT_BIAS not in shapes:
      return out | {'bias': bias + inside}
    # Of a GRU, the last third is reset with what the recurrent kernel gives.
    width = len(bias) // 3
    outside = np.concatenate([inside[:-width], np.zeros(width)])
    return out | {'bias': bias + outside, RECURRENT_BIAS: inside[-width:]}
  weight = arrays['weight']
  added = {'bias': arrays['bias']} if 'bias' in arrays else {}
  if 'scale' in shapes:
    for name in _STATISTICS.keys() & shapes.keys():
      added[name] = arrays[_STATISTICS[name]]
    return {'scale': weight} | added
  if weight.ndim == 4:
    return {KERNEL: weight.transpose(2, 3, 1, 0)} | added
  size_out, size_in = weight.shape
  if channels > 1 and size_in % channels == 0:
    pixels = weight.reshape(size_out, channels, size_in // channels)
    return {KERNEL: pixels.transpose(2, 1, 0).reshape(size_in, size_out)} | added
  return {KERNEL: weight.T} | added


def inputs(x: np.ndarray, example_shape: tuple[int, ...]) -> np.ndarray:
  """Inputs of a PyTorch module as examples of the model here, float32.

  `x` are images [B, C, H, W], or [B, ...] of the examples' own shape.
  """
  x = np.asarray(x)
  if x.ndim == 4:
    moved = x.transpose(0, 2, 3, 1)
    if moved.shape[1:] in (example_shape, (*example_shape, 1)):
      return moved.reshape(len(x), *example_shape).astype(np.float32)
  return x.astype(np.float32)
