"""The work loads of all benchmarks, as NumPy arrays that any framework can load.

This module imports nothing but NumPy: peers run in environments of their own.
"""

import itertools
from typing import NamedTuple

import numpy as np


class Workload(NamedTuple):
  """Local training on every client.

  Attributes:
    name: W1 .. W6.
    summary: what it is, in a line.
    network: 'femnist_cnn', 'emnist_cnn' or 'mlp'.
    hidden: widths of the MLP.
    example_shape: of one example.
    num_classes: L.
    batch_size: B.
    num_clients: M.
    examples: training examples of each client; the median where `ragged`.
    learning_rate: of plain SGD.
    ragged: whether client sizes are log-normal.
    epochs: local epochs of a round.
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
    """X [T, ...] uint8, y [T] int64, sizes [M]: random, but always the same."""
    sizes = self.sizes(num_clients)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (sizes.sum(), *self.example_shape), dtype=np.uint8)
    y = rng.integers(0, self.num_classes, sizes.sum())
    return x, y, sizes

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter, kernels as [h, w, in, out] and [in, out].

    Layers in the order in which they run: convolutions, dense ones, logits.
    """
    if self.network == 'mlp':
      layers: list[tuple[int, ...]] = []
      widths = (int(np.prod(self.example_shape)), *self.hidden, self.num_classes)
      layers = list(itertools.pairwise(widths))
    elif self.network == 'femnist_cnn':
      layers = [(5, 5, 1, 32), (5, 5, 32, 64), (3136, 2048), (2048, self.num_classes)]
    else:
      layers = [(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, self.num_classes)]
    shapes = {}
    for i, shape in enumerate(layers):
      shapes[f'kernel{i}'] = shape
      shapes[f'bias{i}'] = shape[-1:]
    return shapes

  def initial(self) -> dict[str, np.ndarray]:
    """The same start for every framework: kernels scaled by their fan-in."""
    rng = np.random.default_rng(1)
    out = {}
    for name, shape in self.shapes().items():
      fan_in = np.prod(shape[:-1]) if len(shape) > 1 else np.inf
      out[name] = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
    return out

  def probe(self) -> tuple[np.ndarray, np.ndarray]:
    """One batch, on which one step must give the same result everywhere."""
    x, y, _ = self.arrays(1)
    return x[: self.batch_size], y[: self.batch_size]


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
  )
}
WORKLOADS['W6'] = WORKLOADS['W1']._replace(
  name='W6',
  summary='W1 with five local epochs',
  epochs=5,
)
