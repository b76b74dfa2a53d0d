"""The data of several runs on the same devices, each example once."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data import placement
from fesem_jax.data.arrangement import ordered
from fesem_jax.utils.stored_rows import read

Splits = tuple[FederatedData, FederatedData]


def arrange_together(local: LocalTraining, pairs: Sequence[Splits]) -> list[Splits]:
  """Training and test splits of runs, on every device, each example once.

  All have the rows of all, and `offsets` of their own. Their clients are in the order
  that they have in a run alone. Splits are on the host, alike but for their examples
  and clients; `local` decides the order.
  """
  distinct = {(id(train), id(test)): (train, test) for train, test in pairs}
  arranged = [ordered(local, *pair) for pair in distinct.values()]
  placed = [_with_rows_of_all(local.mesh, each) for each in zip(*arranged, strict=True)]
  by_pair = dict(zip(distinct, zip(*placed, strict=True), strict=True))
  return [by_pair[id(train), id(test)] for train, test in pairs]


def _with_rows_of_all(
  mesh: Mesh, splits: Sequence[FederatedData]
) -> list[FederatedData]:
  """Splits on every device, with the rows of all of them."""
  whole = dataclasses.replace(
    splits[0],
    x=np.concatenate([read(split.x) for split in splits]),
    y=np.concatenate([read(split.y) for split in splits]),
    max_examples=max(split.max_examples for split in splits),
  )
  whole = placement.place(whole, mesh, 'replicated')
  common = {
    name: getattr(whole, name) for name in ('x', 'y', 'max_examples', 'flat_from')
  }
  arranged, before = [], 0
  for split in splits:
    offsets = (np.asarray(split.offsets) + before).astype(np.int32)
    before += len(split.y)
    own = dataclasses.replace(split, x=None, y=None, offsets=offsets, server_test=None)
    arranged.append(dataclasses.replace(sharding.replicate(own, mesh), **common))
  return arranged
