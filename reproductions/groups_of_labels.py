"""Published groups of clients with different labels: MNIST and CIFAR-10."""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import numpy as np

from fesem_jax import models
from fesem_jax.core.types import Model
from fesem_jax.data import sources
from fesem_jax.models import conv

# CLoVE, `utils/dataset_modifier.py`: classes of each group, without and with overlap.
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
FOURS = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 0, 1), (0, 2, 4, 6), (1, 3, 5, 6))
# Labels that a group swaps, by pairs ("exp111").
SWAPS = ((0, 3, 8, 9), (1, 4, 6, 9), (1, 2, 3, 6), (3, 5, 4, 7))


def images(dataset: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """X [T, ...], y [T] and split [T] (0 training, 1 test) of MNIST or CIFAR-10."""
  pool = sources.read(dataset)
  split = np.zeros(len(pool.y), np.int32)
  split[60_000 if dataset == 'mnist' else 50_000 :] = 1
  return pool.x, pool.y, split


def _standard_mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """MNIST of `images` in float32 with mean 0 and deviation 1, as in these papers."""
  x, y, split = images('mnist')
  return (x.astype(np.float32) / 255 - 0.1307) / 0.3081, y, split


def clove(
  *,
  skew: int = 1,
  clients: int = 5,
  examples: int = 500,
  test: int = 100,
  dataset: str = 'mnist',
  seed: int = 0,
) -> dict[str, np.ndarray]:
  """CLoVE's label skew 1 (`PAIRS`), 2 (`FOURS`), or 0: concept shift (`SWAPS`).

  Each group has so many clients, with so many examples for training and for testing,
  drawn without replacement within a group. 3 is label skew 2 as the code draws it.
  """
  x, y, split = images(dataset)
  rng = np.random.default_rng(seed)
  groups = {0: [range(10)] * len(SWAPS), 1: PAIRS, 2: FOURS, 3: ()}[skew]
  pools = _drawn_fours(y, split, rng) if skew == 3 else []
  for classes in groups:
    fitting = np.isin(y, list(classes))
    pools.append([np.flatnonzero(fitting & (split == part)) for part in (0, 1)])
  rows, names, clusters = [], [], []
  for group, pool in enumerate(pools):
    for fitting, count in zip(pool, (examples, test), strict=True):
      count = min(count, len(fitting) // clients)
      rows.append(rng.permutation(fitting)[: clients * count])
      names.append(group * clients + np.repeat(np.arange(clients), count))
      clusters.append(np.full(clients * count, group))
  row, cluster = np.concatenate(rows), np.concatenate(clusters)
  labels = y[row].copy()
  if skew == 0:
    for group, (a, b, c, d) in enumerate(SWAPS):
      renamed = np.arange(10)
      renamed[[a, b, c, d]] = b, a, d, c
      labels = np.where(cluster == group, renamed[labels], labels)
  return {
    'x': x[row], 'y': labels, 'client': np.concatenate(names).astype(str),
    'split': split[row], 'cluster': cluster,
  }  # fmt: skip


def _drawn_fours(y: Any, split: Any, rng: np.random.Generator) -> list[list[Any]]:
  """Training and test images of five drawn sets of four labels; any two share two.

  Sets divide a tenth of the images of a label evenly and the others by Dirichlet(0.5).
  Until all sets have 5,100 for training (510 for testing), it rises in steps of 5 %.
  """
  sets = list[set[int]]()
  while len(sets) < 5:
    labels = set(rng.choice(10, 4, replace=False))
    if all(len(labels & other) == 2 for other in sets):
      sets.append(labels)

  def deal(part: int, even: float) -> list[Any]:
    pools: list[Any] = [[] for _ in sets]
    for label in range(10):
      row = rng.permutation(np.flatnonzero((y == label) & (split == part)))
      owners = [
        pool for pool, labels in zip(pools, sets, strict=True) if label in labels
      ]
      shares = rng.dirichlet(np.full(len(owners), 0.5)) if owners else np.ones(1)
      shares = even / len(shares) + (1 - even) * shares
      ends = (np.cumsum(shares)[:-1] * len(row)).astype(int)
      for pool, piece in zip(owners, np.split(row, ends), strict=False):
        pool.extend(piece)
    enough = min(map(len, pools)) >= (510 if part else 5100)
    return pools if enough else deal(part, even + 0.05)

  return [list(pool) for pool in zip(deal(0, 0.1), deal(1, 0.1), strict=True)]


def cfla() -> dict[str, np.ndarray]:
  """CFLA's MNIST: 50 clients in three groups of classes that share one class each.

  A fifth of a client's images are for training, the others for testing.
  """
  x, y, split = _standard_mnist()
  rng = np.random.default_rng(0)
  rows, clusters, splits = [], [], []
  names = list[np.ndarray]()
  for group, (low, high, count) in enumerate(((0, 4, 18), (4, 7, 17), (7, 9, 15))):
    fitting = np.flatnonzero((y >= low) & (y <= high) & (split == 0))
    for part in np.array_split(rng.permutation(fitting), count):
      names.append(np.full(len(part), len(names)))
      clusters.append(np.full(len(part), group))
      splits.append(np.arange(len(part)) >= len(part) // 5)
      rows.append(part)
  row = np.concatenate(rows)
  return {
    'x': x[row], 'y': y[row], 'client': np.concatenate(names).astype(str),
    'split': np.concatenate(splits).astype(np.int32),
    'cluster': np.concatenate(clusters),
  }  # fmt: skip


def disco(*, groups: str = 'rotation', alpha: float = 0.3) -> dict[str, np.ndarray]:
  """DisCo-CFL's MNIST: 40 clients in four groups, by 'rotation' or by label 'swap'.

  Each client draws 400 training and 300 test images by its own Dirichlet(alpha).
  """
  x, y, split = _standard_mnist()
  rng = np.random.default_rng(0)
  pairs = ((), ((0, 1), (2, 3)), ((4, 5), (6, 7)), ((8, 9), (1, 7)))
  images, labels, parts = [], [], []
  for client in range(40):
    group, shares = client // 10, rng.dirichlet(np.full(10, alpha))
    renamed = np.arange(10)
    for a, b in pairs[group] if groups == 'swap' else ():
      renamed[[a, b]] = renamed[[b, a]]
    for part, count in ((0, 400), (1, 300)):
      for label, number in enumerate(rng.multinomial(count, shares)):
        fitting = np.flatnonzero((y == label) & (split == part))
        row = rng.choice(fitting, number, replace=False)
        turns = group if groups == 'rotation' else 0
        images.append(np.rot90(x[row], turns, axes=(1, 2)))
        labels.append(renamed[y[row]])
        parts.append(np.full((number, 2), (client, part)))
  clients, split_of_row = np.concatenate(parts).T
  return {
    'x': np.concatenate(images), 'y': np.concatenate(labels),
    'client': clients.astype(str), 'split': split_of_row.astype(np.int32),
    'cluster': clients // 10,
  }  # fmt: skip


def fed_proto(*, ways: int = 3, deviation: int = 2) -> dict[str, np.ndarray]:
  """FedProto's MNIST: 20 clients of about `ways` classes, about 100 images of each.

  Clients draw 40 test images of each of their classes.
  """
  x, y, split = _standard_mnist()
  rng = np.random.default_rng(0)
  rows, names = [], []
  low, high = max(2, ways - deviation), min(10, ways + deviation + 1)
  for client in range(20):
    classes = rng.choice(10, rng.integers(low, high), replace=False)
    shots = rng.integers(90, 111)
    for label in classes:
      for part, count in ((0, shots), (1, 40)):
        fitting = np.flatnonzero((y == label) & (split == part))
        begin = client * 110 if part == 0 else client * 40
        rows.append(fitting[begin : begin + count])
        names.append(np.full(len(rows[-1]), client))
  row = np.concatenate(rows)
  clients = np.concatenate(names).astype(str)
  return {'x': x[row], 'y': y[row], 'client': clients, 'split': split[row]}


class _Cnn(nn.Module):
  """Two convolutions 5x5 without padding, each with ReLU and a maximum of 2x2."""

  features: tuple[int, int]
  hidden: tuple[int, ...]
  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = x.reshape(*x.shape[:3], -1)
    for i, features in enumerate(self.features):
      layer = models.Conv(features, 5, 'VALID', name=f'conv{i}')
      x = nn.relu(conv.max_pool(layer(x)))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.hidden):
      x = nn.relu(nn.Dense(width, name=f'dense{i}')(x))
    return nn.Dense(self.num_classes, name='logits')(x)


class _MeanLeNet(nn.Module):
  """LeNet-5 with means of 2x2."""

  num_classes: int
  activation: Callable[[jax.Array], jax.Array] = nn.tanh

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = x.reshape(*x.shape[:3], -1)
    for i, features in enumerate((6, 16)):
      padding: Literal['SAME', 'VALID'] = 'VALID' if i else 'SAME'
      x = self.activation(models.Conv(features, 5, padding, name=f'conv{i}')(x))
      n, h, w, c = x.shape
      x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate((120, 84)):
      x = self.activation(nn.Dense(width, name=f'dense{i}')(x))
    return nn.Dense(self.num_classes, name='logits')(x)


class _NormedCnn(nn.Module):
  """Four convolutions 3x3, each with BatchNorm, ReLU and a maximum of 2x2."""

  num_classes: int
  width: int
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    for i in range(4):
      x = models.Conv(self.width * 2**i, 3, name=f'conv{i}')(x)
      x = nn.BatchNorm(not train, momentum=0.99, epsilon=1e-3, name=f'norm{i}')(x)
      x = conv.max_pool(nn.relu(x))
    x = x.reshape(x.shape[0], -1)
    for i in range(2):
      x = nn.relu(nn.Dense(self.width * 16 // 2**i, name=f'dense{i}')(x))
      x = nn.Dropout(self.dropout, deterministic=not train)(x)
    return nn.Dense(self.num_classes, name='logits')(x)


def cfla_cnn(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """CFLA's network of MNIST."""
  return models.from_flax(_MeanLeNet(num_classes), example_shape)


def flux_cnn(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """FLUX's LeNet-5, with ReLU."""
  return models.from_flax(_MeanLeNet(num_classes, nn.relu), example_shape)


def clove_cnn(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """CLoVE's network of MNIST: 6 and 16 features, and the logits."""
  return models.from_flax(_Cnn((6, 16), (), num_classes), example_shape)


def clove_cifar_cnn(
  example_shape: tuple[int, ...],
  num_classes: int,
  *,
  width: int = 16,
  dropout: float = 0.0,
) -> Model:
  """CLoVE's network of CIFAR-10, which has 64 as `width` and 0.5 as `dropout`.

  BatchNorm is that of Keras, which FlexCFL's code uses.
  """
  return models.from_flax(_NormedCnn(num_classes, width, dropout), example_shape)


def fed_proto_cnn(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """FedProto's network of MNIST: 10 and 20 features, 50 hidden units; no dropout."""
  return models.from_flax(_Cnn((10, 20), (50,), num_classes), example_shape)


def disco_cnn(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """DisCo-CFL's network: 16 and 32 features, 64 hidden units."""
  return models.from_flax(_Cnn((16, 32), (64,), num_classes), example_shape)
