"""Placement of examples: replicated, or on the device of their client."""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData

# 'auto' splits data that take more than this share of a device's memory; the first
# where every client takes part, the second where it changes who is drawn.
_MOST_OF_ALL, _MOST_OF_SOME = 1 / 8, 1 / 2


def chosen(data_placement: str, num_bytes: int, mesh: Mesh, everyone: bool) -> str:
  """'replicated' or 'sharded', as `data_placement` says.

  'auto' splits data between accelerators that would take more than an eighth of the
  memory of each; more than half where rounds are of some clients (not `everyone`), as
  then another placement draws others. CPU devices, which share the machine's memory,
  get all data. With 'sharded', rounds of some clients draw of each device alike, so
  that their clients depend on the number of devices, unless it divides 8. `num_bytes`
  are those of both splits; see `bytes_of`.
  """
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
  """F, the numbers that one example takes on a device.

  A TPU has the last axis in tiles of 128. Would it not fill them, examples would lie
  across each other there, to save room, and each round would turn all of them.
  """
  numbers = math.prod(example_shape)
  tile = 128 if mesh.devices.flat[0].platform == 'tpu' else 1
  return -(-numbers // tile) * tile


def place(data: FederatedData, mesh: Mesh, data_placement: str) -> FederatedData:
  """A split on the devices, from `data` on the host.

  Its M clients are in the order that they get; M is a multiple of
  `sharding.num_shards`. A `data_placement` of 'replicated' puts all of it on every
  device; 'sharded' puts only the examples of a device's clients there, the d-th part of
  the clients on the d-th device. Of several processes each reads those of its own
  devices.
  """
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
      own = rows[slice(*bounds[device])]
      whole = np.zeros((on_each, *shape), own.dtype)
      whole[: len(own)] = _flat(own, width) if width else own
      return whole

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
  """[T, width] examples, each with zeros behind its numbers."""
  flat = x.reshape(len(x), math.prod(x.shape[1:]))
  if flat.shape[1] == width:
    return flat
  numbers = min(width, flat.shape[1])
  wide = np.zeros((len(x), width), x.dtype)
  wide[:, :numbers] = flat[:, :numbers]
  return wide


def of(data: FederatedData) -> str:
  """How a split was placed: 'replicated' or 'sharded'."""
  return 'replicated' if data.shard_rows is None else 'sharded'


def identity(data: FederatedData, mesh: Mesh) -> dict[str, str | int]:
  """The part of a run's configuration that is due to the placement of `data`.

  Returns nothing where data are whole on every device; else how many parts of the
  clients are drawn from alike, on which the cohorts depend.
  """
  if data.shard_rows is None:
    return {}
  return {'data_placement': 'sharded', 'data_shards': sharding.num_shards(mesh.size)}


def note(mesh: Mesh, *splits: FederatedData) -> str:
  """A sentence on what devices hold of splits that were placed by client."""
  held = sum(rows.nbytes for split in splits for rows in (split.x, split.y))
  examples = sum(int(np.asarray(split.offsets)[-1]) for split in splits)
  rows = sum(len(split.y) for split in splits)
  on_each, padding = held / mesh.size / 2**20, 100 * (1 - examples / rows)
  return (
    f'The data are split by client: each of {mesh.size} device(s) holds {on_each:,.1f} '
    f'MiB of examples, {padding:.1f} % of it padding. Rounds of some clients, and '
    'samples of clients, draw from each device alike.'
  )
