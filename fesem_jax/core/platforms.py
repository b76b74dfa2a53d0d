"""Functions of devices: one for each platform, and on each device's own clients."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sharding import CLIENTS


def choose(
  cpu: Callable[..., Any],
  accelerator: Callable[..., Any],
  *args: Any,
  tpu: Callable[..., Any] | None = None,
) -> Any:
  """`cpu(*args)` or `accelerator(*args)`, by the platform of the program at lowering.

  `tpu` is for TPUs, if they differ from GPUs; all are equal up to rounding.
  """
  functions = {'cpu': cpu, 'tpu': tpu or accelerator}
  return jax.lax.platform_dependent(*args, **functions, default=accelerator)


def per_device(
  fn: Callable[..., Any], mesh: Mesh | None, num_split: int, in_shards: bool = False
) -> Callable[..., Any]:
  """Runs `fn` on each device's clients.

  `fn` maps arrays to rows, with a leading client axis, and sums over devices, either of
  which may be None. `num_split` leading arguments have that axis; others are
  replicated, except for split data. Without a `mesh`, nothing is split. With
  `in_shards`, `fn` returns sums of each shard of a device, with a leading axis.
  """
  if mesh is None or (mesh.size == 1 and not in_shards):
    return fn

  def on_one(*args: Any) -> Any:
    rows, sums = fn(*args)
    if not in_shards:
      return rows, jax.lax.psum(sums, CLIENTS)
    if mesh.size > 1:
      sums = jax.lax.all_gather(sums, CLIENTS, tiled=True)
    return rows, jax.tree.map(_sum_of_neighbors, sums)

  if mesh.size == 1:
    return on_one

  def run(*args: Any) -> Any:
    specs = [
      PartitionSpec(CLIENTS) if i < num_split else specs_of(arg)
      for i, arg in enumerate(args)
    ]
    return jax.shard_map(
      on_one,
      mesh=mesh,
      in_specs=tuple(specs),
      out_specs=(PartitionSpec(CLIENTS), PartitionSpec()),
      check_vma=False,
    )(*args)

  return run


def _sum_of_neighbors(x: jax.Array) -> jax.Array:
  """The sum over the first axis: of neighbors, of their neighbors, and so on."""
  while x.shape[0] % 2 == 0:
    x = x[::2] + x[1::2]
  return x.sum(axis=0)


def specs_of(tree: Any) -> Any:
  """Partition specs of the tree: replicated, except for split data."""

  def specs(x: Any) -> Any:
    whole = jax.tree.map(lambda _: PartitionSpec(), x)
    if not isinstance(x, FederatedData) or x.shard_rows is None:
      return whole
    split = PartitionSpec(CLIENTS)
    return dataclasses.replace(whole, x=split, y=split, shard_rows=split)

  return jax.tree.map(specs, tree, is_leaf=lambda x: isinstance(x, FederatedData))
