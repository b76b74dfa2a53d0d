"""The networks of the work loads: layers, parameters, and the products of a step.

This module imports nothing but NumPy: peers run in environments of their own.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Layer(NamedTuple):
  """A layer with parameters.

  Attributes:
    name: path of the layer in our parameters.
    shapes: of its parameters: kernels [h, w, in, out] and [in, out], and others.
    places: how often an example meets a kernel: pixels that a convolution gives, or
      steps of a recurrent layer. A table of vectors is looked up: 0.
  """

  name: str
  shapes: dict[str, Shape]
  places: int = 1


def dense(name: str, size_in: int, size_out: int) -> Layer:
  """A dense layer."""
  return Layer(name, {'kernel': (size_in, size_out), 'bias': (size_out,)})


def conv(name: str, shape: Shape, side: int) -> Layer:
  """A convolution with a bias that gives `side` x `side` pixels."""
  return Layer(name, {'kernel': shape, 'bias': shape[-1:]}, side * side)


def mlp(widths: Sequence[int]) -> list[Layer]:
  """Dense layers; the last one gives logits."""
  *hidden, last = itertools.pairwise(widths)
  layers = [dense(f'dense{i}', *sizes) for i, sizes in enumerate(hidden)]
  return [*layers, dense('logits', *last)]


def femnist_cnn(classes: int) -> list[Layer]:
  """LEAF's network: padded convolutions, each pooled."""
  return [
    conv('conv0', (5, 5, 1, 32), 28),
    conv('conv1', (5, 5, 32, 64), 14),
    dense('dense', 3136, 2048),
    dense('logits', 2048, classes),
  ]


def emnist_cnn(classes: int, side: int = 28, colors: int = 1) -> list[Layer]:
  """TensorFlow Federated's network: convolutions without padding, pooled once."""
  return [
    conv('conv0', (3, 3, colors, 32), side - 2),
    conv('conv1', (3, 3, 32, 64), side - 4),
    dense('dense', 64 * (side // 2 - 2) ** 2, 128),
    dense('logits', 128, classes),
  ]


def lenet5(classes: int) -> list[Layer]:
  """LeNet-5 for 32 x 32 pixels of three colors: 62,006 parameters with ten classes."""
  return [
    conv('conv0', (5, 5, 3, 6), 28),
    conv('conv1', (5, 5, 6, 16), 10),
    dense('dense0', 400, 120),
    dense('dense1', 120, 84),
    dense('logits', 84, classes),
  ]


def resnet8(classes: int) -> list[Layer]:
  """ResNet-8 with GroupNorm, for 32 x 32 pixels of three colors."""
  layers = _normed_conv('', '', 3, 16, 32)
  size_in = 16
  for stage, (size, side) in enumerate(((16, 32), (32, 16), (64, 8))):
    for i in range(2):
      block = f'stage{stage}_block0/'
      layers += _normed_conv(block, str(i), size_in, size, side)
      size_in = size
  return [*layers, dense('logits', 64, classes)]


def _normed_conv(
  block: str, number: str, size_in: int, size_out: int, side: int
) -> list[Layer]:
  """A 3x3 convolution without a bias, and its norm."""
  kernel: dict[str, Shape] = {'kernel': (3, 3, size_in, size_out)}
  norm: dict[str, Shape] = {'scale': (size_out,), 'bias': (size_out,)}
  return [
    Layer(f'{block}conv{number}', kernel, side * side),
    Layer(f'{block}norm{number}', norm),
  ]


def lstm(classes: int, steps: int, width: int = 256) -> list[Layer]:
  """LEAF's network for Shakespeare: an embedding of 8, two LSTM layers, logits."""
  layers = [Layer('embedding', {'embedding': (classes, 8)}, 0)]
  for i, size_in in enumerate((8, width)):
    shapes = {
      'kernel': (size_in, 4 * width),
      'recurrent': (width, 4 * width),
      'bias': (4 * width,),
    }
    layers.append(Layer(f'lstm{i}', shapes, steps))
  return [*layers, dense('logits', width, classes)]


def initial(layers: Sequence[Layer]) -> dict[str, np.ndarray]:
  """The same start for every framework, by path of the parameter.

  Kernels are normal with a standard deviation of 1 / sqrt(fan-in), scales 1, biases 0.
  """
  rng = np.random.default_rng(1)
  out = {}
  for layer in layers:
    for name, shape in layer.shapes.items():
      fan_in = np.prod(shape[:-1]) if len(shape) > 1 else np.inf
      drawn = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
      out[f'{layer.name}/{name}'] = np.ones_like(drawn) if name == 'scale' else drawn
  return out
