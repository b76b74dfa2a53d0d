"""How much data a run has, and how much work, where only their sizes are known."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.cohorts.arrangement import padded_clients
from fesem_jax.cohorts.placement import width_of
from fesem_jax.core import chips
from fesem_jax.core.batching import batch_width, most_steps
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sharding import CLIENTS
from fesem_jax.core.types import ClientInfo, FederatedData
from fesem_jax.training.local_sgd import weighted_loss


class Split(NamedTuple):
  """Sizes of one split.

  Attributes:
    examples: T of all clients.
    most: N_max, the most of one client.
  """

  examples: int
  most: int


class Outline(NamedTuple):
  """How much data a run has.

  Attributes:
    num_clients: M.
    train: training split.
    test: test split.
    example_shape: of one example.
    dtype: of features, uint8 or float32.
    num_classes: L.
  """

  num_clients: int
  train: Split
  test: Split
  example_shape: tuple[int, ...]
  dtype: Any
  num_classes: int

  @property
  def bytes(self) -> int:
    """Of the examples of both splits."""
    features = math.prod(self.example_shape) * np.dtype(self.dtype).itemsize
    return (self.train.examples + self.test.examples) * (features + 4)

  @classmethod
  def of(cls, train: FederatedData, test: FederatedData) -> 'Outline':
    """That of data at hand."""

    def split(data: FederatedData) -> Split:
      return Split(len(data.y), data.max_examples)

    shape, dtype = train.example_shape, np.dtype(train.x.dtype)
    count = train.num_clients
    return cls(count, split(train), split(test), shape, dtype, train.num_classes)


class Work(NamedTuple):
  """The least work of a client's local step, and how many there are.

  Attributes:
    operations: additions and multiplications.
    bytes: of parameters, which the forward and the backward products read, gradients
      are, and the update reads and writes: five times the model.
    steps: of all clients of a round on a device.
    passes: of each product, see `chips.PASSES`.
  """

  operations: float
  bytes: float
  steps: float
  passes: int = chips.PASSES['highest']


def work_of(local: LocalTraining, outline: Outline, clients: float) -> Work:
  """The work of the clients of a device."""
  width = batch_width(local.schedule, outline.train.most)
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((width, *outline.example_shape), jnp.float32)
  y = jax.ShapeDtypeStruct((width,), jnp.int32)
  weights = jax.ShapeDtypeStruct((width,), jnp.float32)

  def gradient(params, x, y, weights):
    return jax.grad(lambda p: weighted_loss(local.model, p, x, y, weights))(params)

  costs: Any = jax.jit(gradient).lower(params, x, y, weights).cost_analysis() or {}
  size = sum(map(bytes_of, jax.tree.leaves(params)))
  mean = outline.train.examples / max(1, outline.num_clients)
  steps = local.schedule.steps or local.schedule.epochs * math.ceil(mean / width)
  steps = min(steps, most_steps(local.schedule, outline.train.most))
  return Work(
    float(costs.get('flops', 0.0)),
    5.0 * size,
    steps * clients,
    chips.PASSES[local.precision],
  )


def data_of(
  outline: Outline, split: Split, mesh: Mesh, data_placement: str = 'replicated'
) -> FederatedData:
  """Shapes of a split as `cohorts.arrange` makes it, but for the padding of shards."""
  whole = NamedSharding(mesh, PartitionSpec())
  count = padded_clients(outline.num_clients, mesh)
  rows, examples, shards = whole, split.examples, None
  if data_placement == 'sharded':
    rows = NamedSharding(mesh, PartitionSpec(CLIENTS))
    examples = -(-examples // mesh.size) * mesh.size
    shards = array_of(rows, (mesh.size, 2), np.int32)
  return FederatedData(
    x=array_of(rows, (examples, width_of(outline.example_shape, mesh)), outline.dtype),
    y=array_of(rows, (examples,), np.int32),
    offsets=array_of(whole, (count + 1,), np.int32),
    client_ids=array_of(whole, (count,), np.int32),
    num_classes=outline.num_classes,
    scale=1 / 255 if np.dtype(outline.dtype) == np.uint8 else 1.0,
    max_examples=split.most,
    info=ClientInfo(np.arange(outline.num_clients).astype(str)),
    shard_rows=shards,
    flat_from=tuple(outline.example_shape),
  )


def array_of(placed: Any, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  """The shape of an array with its placement."""
  return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)


def bytes_of(x: Any) -> int:
  """Bytes of all numbers of an array or a shape."""
  return math.prod(x.shape) * x.dtype.itemsize
