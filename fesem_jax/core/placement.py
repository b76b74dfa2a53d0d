"""Placement of examples: replicated, or on the device of their client."""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData

# Shares of a device's memory above which 'auto' splits data: where every client takes
# part, and where splitting changes who is drawn.
_MOST_OF_ALL, _MOST_OF_SOME = 1 / 8, 1 / 2


def chosen(data_placement: str, num_bytes: int, mesh: Mesh, everyone: bool) -> str:
  """The placement; 'auto' splits data that take much of an accelerator's memory."""
  if data_placement != 'auto':
    return data_placement
  memory = sharding.own_memory(mesh.devices.flat[0])
  share = _MOST_OF_ALL if everyone else _MOST_OF_SOME
  large = memory is not None and num_bytes > share * memory
  return 'sharded' if large and mesh.size > 1 else 'replicated'


def bytes_of(*splits: FederatedData) -> int:
  """Bytes of the examples of some splits, without padding."""
  return sum(split.x.nbytes + split.y.nbytes for split in splits)


def width_of(example_shape: tuple[int, ...], mesh: Mesh) -> int:
  """F, the numbers of an example on a device: on a TPU, whole tiles of 128."""
  numbers = math.prod(example_shape)
  tile = 128 if mesh.devices.flat[0].platform == 'tpu' else 1
  return -(-numbers // tile) * tile


def place(data: FederatedData, mesh: Mesh, data_placement: str) -> FederatedData:
  """A split on the devices, from arranged clients on the host; see `LocalTraining`."""
  data = dataclasses.replace(data, server_test=None)
  shape = data.example_shape
  width = width_of(shape, mesh)
  if data_placement == 'replicated':
    x = _flat(np.asarray(data.x), width)
    return sharding.replicate(dataclasses.replace(data, x=x, flat_from=shape), mesh)
  ends = np.asarray(data.offsets)[:: data.num_clients // mesh.size]
  bounds = np.stack([ends[:-1], ends[1:]], axis=1)
  on_each = int(np.diff(bounds).max(initial=1))

  def split(rows: np.ndarray, width: int = 0) -> jax.Array:
    shape = (width,) if width else rows.shape[1:]

    def part(device: int) -> np.ndarray:
      local = rows[slice(*bounds[device])]
      padded = np.zeros((on_each, *shape), local.dtype)
      padded[: len(local)] = _flat(local, width) if width else local
      return padded

    return sharding.split_rows((mesh.size * on_each, *shape), part, mesh)

  whole = sharding.replicate(dataclasses.replace(data, x=None, y=None), mesh)
  return dataclasses.replace(
    whole,
    x=split(data.x, width),
    y=split(data.y),
    flat_from=shape,
    shard_rows=sharding.split_rows(bounds.shape, lambda d: bounds[d : d + 1], mesh),
  )


def _flat(x: np.ndarray, width: int) -> np.ndarray:
  flat = x.reshape(len(x), math.prod(x.shape[1:]))[:, :width]
  padding = width - flat.shape[1]
  return np.pad(flat, ((0, 0), (0, padding))) if padding else flat


def of(data: FederatedData) -> str:
  """How a split was placed: 'replicated' or 'sharded'."""
  return 'replicated' if data.shard_rows is None else 'sharded'


def identity(data: FederatedData, mesh: Mesh) -> dict[str, str | int]:
  """Entries of a run's configuration on the placement; none where data are whole."""
  if data.shard_rows is None:
    return {}
  return {'data_placement': 'sharded', 'data_shards': sharding.num_shards(mesh.size)}
