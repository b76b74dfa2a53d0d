"""The work loads of all benchmarks, as NumPy arrays that any framework can load.

This module imports nothing but NumPy: peers run in environments of their own.
"""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from benchmarks import networks


class Workload(NamedTuple):
  """Local training on every client.

  Attributes:
    name: W1 .. W10.
    summary: what it is, in a line.
    network: 'femnist_cnn', 'emnist_cnn', 'lenet5', 'resnet8', 'lstm' or 'mlp'.
    hidden: widths of the MLP.
    example_shape: of one example.
    num_classes: L.
    batch_size: B.
    num_clients: M.
    examples: training examples of each client; the median where `ragged`.
    learning_rate: of plain SGD.
    ragged: whether client sizes are log-normal.
    epochs: local epochs of a round.
    shards: shards of CIFAR-10 of each client, one class a shard; 0, and where
      `FESEM_DATA_DIR` lacks it: random pixels and labels.
  """

  name: str
  summary: str
  network: str
  hidden: tuple[int, ...]
  example_shape: tuple[int, ...]
  num_classes: int
  batch_size: int
  num_clients: int
  examples: int
  learning_rate: float
  ragged: bool = False
  epochs: int = 1
  shards: int = 0

  def sizes(self, num_clients: int) -> np.ndarray:
    """[M] int64 examples of each client."""
    if not self.ragged:
      return np.full(num_clients, self.examples)
    rng = np.random.default_rng(0)
    # The spread of LEAF's FEMNIST: a standard deviation of 0.4 times the mean.
    sizes = self.examples * np.exp(0.4 * rng.standard_normal(num_clients))
    return np.maximum(sizes.astype(np.int64), self.batch_size)

  def steps(self, num_clients: int) -> int:
    """SGD steps of all clients in a round."""
    return int(self.steps_of(self.sizes(num_clients)).sum())

  def steps_of(self, sizes: np.ndarray) -> np.ndarray:
    """[M] SGD steps of clients of so many examples in a round."""
    return self.epochs * -(-sizes // self.batch_size)

  def arrays(self, num_clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y [T] int64, sizes [M]: always the same.

    X are pixels [T, ...] uint8, or tokens [T, S] int32 that are labels too.
    """
    sizes = self.sizes(num_clients)
    rng = np.random.default_rng(0)
    if self.shards and (cifar10 := _cifar10()):
      x, y = cifar10
      length = self.examples // self.shards
      first = rng.permutation(len(y) // length)[: num_clients * self.shards] * length
      rows = np.argsort(y, kind='stable')[(first[:, None] + np.arange(length)).ravel()]
      return x[rows], y[rows], sizes
    shape = (sizes.sum(), *self.example_shape)
    if self.network == 'lstm':
      x = rng.integers(0, self.num_classes, shape, dtype=np.int32)
    else:
      x = rng.integers(0, 256, shape, dtype=np.uint8)
    y = rng.integers(0, self.num_classes, sizes.sum())
    return x, y, sizes

  def layers(self) -> list[networks.Layer]:
    """Layers in the order in which they run."""
    if self.network == 'mlp':
      inputs = int(np.prod(self.example_shape))
      return networks.mlp((inputs, *self.hidden, self.num_classes))
    if self.network == 'lstm':
      return networks.lstm(self.num_classes, *self.example_shape)
    if self.network == 'emnist_cnn':
      return networks.emnist_cnn(self.num_classes, *self.example_shape[1:])
    return getattr(networks, self.network)(self.num_classes)

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Path of each parameter -> its shape, in the order of `layers`."""
    return {
      f'{layer.name}/{name}': shape
      for layer in self.layers()
      for name, shape in layer.shapes.items()
    }

  def initial(self) -> dict[str, np.ndarray]:
    """Path of each parameter -> its start, the same for every framework."""
    return networks.initial(self.layers())

  def probe(self) -> tuple[np.ndarray, np.ndarray]:
    """One batch, on which one step must give the same result everywhere."""
    x, y, _ = self.arrays(1)
    return x[: self.batch_size], y[: self.batch_size]


def _cifar10() -> tuple[np.ndarray, np.ndarray] | None:
  """X [50000, 32, 32, 3] uint8, y [50000] int64 of cifar-10-batches-bin/, if any."""
  folder = pathlib.Path(os.environ.get('FESEM_DATA_DIR', '.'), 'cifar-10-batches-bin')
  if not folder.exists():
    return None
  files = [folder / f'data_batch_{i}.bin' for i in range(1, 6)]
  data = np.concatenate([np.fromfile(f, np.uint8) for f in files]).reshape(-1, 3073)
  x = data[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  return np.ascontiguousarray(x), data[:, 0].astype(np.int64)


WORKLOADS = {
  w.name: w
  for w in (
    Workload(
      'W1',
      'LEAF FEMNIST CNN (6.6 M parameters), batch 10, 100 x 100 examples',
      'femnist_cnn',
      (),
      (28, 28),
      62,
      10,
      100,
      100,
      0.003,
    ),
    Workload(
      'W2',
      'EMNIST CNN (1.2 M parameters), batch 10, 100 x 100 examples',
      'emnist_cnn',
      (),
      (28, 28),
      62,
      10,
      100,
      100,
      0.003,
    ),
    Workload(
      'W3',
      'MLP 784-200-10, batch 50, 1,200 x 200 examples',
      'mlp',
      (200,),
      (784,),
      10,
      50,
      1200,
      200,
      0.1,
    ),
    Workload(
      'W4',
      'MLP 64-32-10, batch 10, 10,000 x 50 examples',
      'mlp',
      (32,),
      (64,),
      10,
      10,
      10_000,
      50,
      0.1,
    ),
    Workload(
      'W5',
      'W1 with log-normal client sizes',
      'femnist_cnn',
      (),
      (28, 28),
      62,
      10,
      100,
      100,
      0.003,
      True,
    ),
    Workload(
      'W7',
      'ResNet-8 with GroupNorm (75,290 parameters), CIFAR-10, batch 32, 100 x 500',
      'resnet8',
      (),
      (32, 32, 3),
      10,
      32,
      100,
      500,
      0.03,
    ),
    Workload(
      'W8',
      'LSTM of Shakespeare (817,872 parameters), 80 characters, batch 10, 100 x 100',
      'lstm',
      (),
      (80,),
      80,
      10,
      100,
      100,
      0.3,
    ),
    Workload(
      'W9',
      "BlazeFL's CNN (62,006 parameters), CIFAR-10 in shards, batch 50, 100 x 500",
      'lenet5',
      (),
      (32, 32, 3),
      10,
      50,
      100,
      500,
      0.1,
      epochs=5,
      shards=2,
    ),
    Workload(
      'W10',
      "pfl-research's CNN without dropout (1.6 M parameters), batch 10, 50 x 50",
      'emnist_cnn',
      (),
      (32, 32, 3),
      10,
      10,
      50,
      50,
      0.1,
    ),
  )
}
WORKLOADS['W6'] = WORKLOADS['W1']._replace(
  name='W6',
  summary='W1 with five local epochs',
  epochs=5,
)
