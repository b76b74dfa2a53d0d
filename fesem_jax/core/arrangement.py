"""Clients' order and examples on the devices, and the clients of a round."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import placement, prng_streams, sharding, stratified
from fesem_jax.core.batching import num_steps
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from fesem_jax.utils import processes

Splits = tuple[FederatedData, FederatedData]


def order_of_clients(local: LocalTraining, train: FederatedData) -> np.ndarray:
  """[M] the order in which `arrange` puts the clients of a training split, by work."""
  work = num_steps(local.schedule, train.sizes(), train.max_examples)
  return sharding.deal(
    np.asarray(work) * train.max_examples + np.asarray(train.sizes())
  )


def process_clients(
  local: LocalTraining, train: FederatedData, data_placement: str
) -> np.ndarray | None:
  """[M] bool, clients whose examples this process places; None is all of them."""
  if data_placement == 'replicated' or processes.count() == 1:
    return None
  order, devices = order_of_clients(local, train), local.mesh.devices.flat
  on_each = padded_clients(len(order), local.mesh) // len(devices)
  owners = np.array([d.process_index for d in devices])
  is_local = np.zeros(len(order), bool)
  is_local[order] = owners[np.arange(len(order)) // on_each] == jax.process_index()
  return is_local


def padded_clients(num_clients: int, mesh: Mesh) -> int:
  """M with the clients without examples that `arrange` adds."""
  multiple = sharding.num_shards(mesh.size)
  return -(-num_clients // multiple) * multiple


def arrange(
  local: LocalTraining, *splits: FederatedData, data_placement: str = 'auto'
) -> list[FederatedData]:
  """Splits of the same M clients on the devices, dealt by the work of the first.

  Clients without examples pad M to a multiple of 8 and of the devices.
  """
  size = placement.bytes_of(*splits)
  chosen = placement.chosen(data_placement, size, local.mesh, everyone=True)
  return [placement.place(s, local.mesh, chosen) for s in ordered(local, *splits)]


def ordered(local: LocalTraining, *splits: FederatedData) -> list[FederatedData]:
  """Splits as `arrange` orders and pads them, on the host; the first decides."""
  order = order_of_clients(local, splits[0])
  padded = padded_clients(len(order), local.mesh)
  return [split.reorder(order, padded) for split in splits]


def arrange_together(
  local: LocalTraining, pairs: Sequence[Splits], like: Sequence[Splits] = ()
) -> list[Splits]:
  """Splits of several runs on every device, each example once, with room for `like`."""
  distinct = {(id(train), id(test)): (train, test) for train, test in pairs}
  arranged = [ordered(local, *pair) for pair in distinct.values()]
  unique = {(id(train), id(test)): (train, test) for train, test in like}
  shapes = list(zip(*unique.values(), strict=True)) or [(), ()]
  placed = [
    _with_all_rows(local.mesh, splits, others)
    for splits, others in zip(zip(*arranged, strict=True), shapes, strict=True)
  ]
  by_pair = dict(zip(distinct, zip(*placed, strict=True), strict=True))
  return [by_pair[id(train), id(test)] for train, test in pairs]


def _with_all_rows(
  mesh: Mesh, splits: Sequence[FederatedData], like: Sequence[FederatedData]
) -> list[FederatedData]:
  padding = max(0, sum(len(s.y) for s in like) - sum(len(s.y) for s in splits))
  whole = dataclasses.replace(
    splits[0],
    x=_rows([np.asarray(split.x) for split in splits], padding),
    y=_rows([np.asarray(split.y) for split in splits], padding),
    max_examples=max(split.max_examples for split in [*splits, *like]),
  )
  whole = placement.place(whole, mesh, 'replicated')
  names = 'x', 'y', 'max_examples', 'flat_from'
  common = {name: getattr(whole, name) for name in names}
  arranged, before = [], 0
  for split in splits:
    offsets = (np.asarray(split.offsets) + before).astype(np.int32)
    before += len(split.y)
    bare = dataclasses.replace(split, x=None, y=None, offsets=offsets, server_test=None)
    arranged.append(dataclasses.replace(sharding.replicate(bare, mesh), **common))
  return arranged


def _rows(arrays: Sequence[np.ndarray], padding: int) -> np.ndarray:
  zeros = np.zeros((padding, *arrays[0].shape[1:]), arrays[0].dtype)
  return np.concatenate([*arrays, zeros])


def draw_cohort(
  seed: int, number: int, clients_per_round: int, train: FederatedData, mesh: Mesh
) -> Cohort:
  """The clients of a round (from 1), drawn by id, dealt so that devices have like work.

  `ids` are [S] positions in the arranged `train`, padded to a multiple of the devices.
  """
  real, round = len(train.info.names), np.int32(number - 1)
  if not 0 < clients_per_round < real:
    ids = np.arange(train.num_clients, dtype=np.int32)
    return Cohort(ids, everyone=True, round=round)
  rng = prng_streams.host_rng(seed, prng_streams.COHORT, number)
  if train.shard_rows is not None:
    ids = stratified.drawn_on_host(rng, clients_per_round, train, mesh)
  else:
    by_id = np.argsort(np.asarray(train.client_ids)[:real])
    positions = by_id[rng.choice(real, clients_per_round, replace=False)]
    ids = _deal(positions, clients_per_round, train, mesh)
  return Cohort(ids, everyone=False, round=round)


def selected_cohort(
  places: np.ndarray, most: int, number: int, train: FederatedData, mesh: Mesh
) -> Cohort:
  """The cohort of selected clients at `places` [<= S], of `most` = S (0: M)."""
  real = len(train.info.names)
  size = most or real
  positions = np.argsort(np.asarray(train.client_ids)[:real])[places]
  if train.shard_rows is None:
    ids = _deal(positions, size, train, mesh)
  else:
    padding = np.full(size - len(positions), train.num_clients)
    padded = jax.numpy.asarray(np.concatenate([positions, padding]).astype(np.int32))
    ids = np.asarray(stratified.on_their_devices(padded, train.num_clients, mesh))
  return Cohort(ids, everyone=False, round=np.int32(number - 1), selected=True)


def _deal(
  positions: np.ndarray, size: int, train: FederatedData, mesh: Mesh
) -> np.ndarray:
  """[S] int32 `positions`, padded to a multiple of the devices, dealt by sizes."""
  padding = size + -size % sharding.divisor(mesh) - len(positions)
  positions = np.concatenate([positions, np.full(padding, train.num_clients)])
  sizes = np.append(np.asarray(train.sizes()), 0)[positions]
  return positions[sharding.deal(sizes)].astype(np.int32)
