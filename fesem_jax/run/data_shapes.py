"""Sizes of a run's data, and shapes of its arrays on devices."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.core.arrangement import padded_clients
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.core.placement import width_of
from fesem_jax.core.sharding import CLIENTS
from fesem_jax.tasks import CLASSIFICATION, TASKS


class SplitSize(NamedTuple):
  """Size of one split."""

  examples: int  # T, of all clients together
  most: int  # N_max, the most examples of one client


class DataSize(NamedTuple):
  """Size of a run's data."""

  num_clients: int  # M
  train: SplitSize
  test: SplitSize
  example_shape: tuple[int, ...]
  dtype: Any  # of features, uint8 or float32
  num_classes: int  # L
  task: str = CLASSIFICATION.name  # see `FederatedData`
  num_groups: int = 0  # G, if the data contain the true groups; 0 otherwise
  weighted: bool = False  # whether clients have weights

  @property
  def bytes(self) -> int:
    """Bytes of the examples of both splits."""
    features = math.prod(self.example_shape) * np.dtype(self.dtype).itemsize
    targets = 4 * math.prod(self.target_shape(1))
    return (self.train.examples + self.test.examples) * (features + targets)

  def target_shape(self, count: int) -> tuple[int, ...]:
    """Shape of the targets of some examples."""
    task = TASKS[self.task]
    return task.target_shape(count, self.example_shape, self.num_classes)

  @classmethod
  def of(cls, train: FederatedData, test: FederatedData) -> 'DataSize':
    """The size of data in memory."""
    return cls(
      train.num_clients,
      SplitSize(len(train.y), train.max_examples),
      SplitSize(len(test.y), test.max_examples),
      train.example_shape,
      np.dtype(train.x.dtype),
      train.num_classes,
      train.task,
      0 if train.groups is None else train.groups.count,
      train.weights is not None,
    )

  def scaled(self, num_clients: int) -> 'DataSize':
    """The size with another number of clients."""
    ratio = num_clients / self.num_clients
    train, test = (
      split._replace(examples=max(1, round(split.examples * ratio)))
      for split in (self.train, self.test)
    )
    return self._replace(num_clients=num_clients, train=train, test=test)


# LEAF's own statistics, of which a tenth of each client's examples is to measure on.
LEAF_SIZES = {
  'femnist': DataSize(
    3550, SplitSize(724_737, 526), SplitSize(80_526, 58), (28, 28), np.uint8, 62
  ),
  'celeba': DataSize(
    9343, SplitSize(180_259, 32), SplitSize(20_029, 4), (84, 84, 3), np.uint8, 2
  ),
}


def data_of(
  size: DataSize, split: SplitSize, mesh: Mesh, data_placement: str = 'replicated'
) -> FederatedData:
  """Shapes of a split after `arrangement.arrange`, without the padding of shards."""
  whole = NamedSharding(mesh, PartitionSpec())
  count = padded_clients(size.num_clients, mesh)
  rows, examples, shards, groups = whole, split.examples, None, None
  if size.num_groups:
    groups = Groups(array_of(whole, (count,), np.int32), size.num_groups)
  if data_placement == 'sharded':
    rows = NamedSharding(mesh, PartitionSpec(CLIENTS))
    examples = -(-examples // mesh.size) * mesh.size
    shards = array_of(rows, (mesh.size, 2), np.int32)
  return FederatedData(
    x=array_of(rows, (examples, width_of(size.example_shape, mesh)), size.dtype),
    y=array_of(
      rows,
      size.target_shape(examples),
      TASKS[size.task].target_dtype,
    ),
    offsets=array_of(whole, (count + 1,), np.int32),
    client_ids=array_of(whole, (count,), np.int32),
    num_classes=size.num_classes,
    scale=1 / 255 if np.dtype(size.dtype) == np.uint8 else 1.0,
    max_examples=split.most,
    info=ClientInfo(np.arange(size.num_clients).astype(str)),
    shard_rows=shards,
    flat_from=tuple(size.example_shape),
    task=size.task,
    groups=groups,
    weights=array_of(whole, (count,), np.float32) if size.weighted else None,
  )


def array_of(placed: Any, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  """Shape, type and placement of an array."""
  return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)
