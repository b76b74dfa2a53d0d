"""Clients over devices: the 'clients' mesh axis, dealing, and chunks.

Client stacks are split over the axis; data and centers are whole on each
device. Whole data lets any cohort be dealt evenly; it is small (uint8) beside
the stack of models.
"""

import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.errors import UserError

CLIENTS = 'clients'

# Sums of more terms than this are formed in two levels.
_GROUP = 256

# Balanced down to 2**10 devices.
_DEALS = 10


def client_mesh(num_devices: int = 0) -> Mesh:
  """A mesh of the first `num_devices` devices (0: all) along 'clients'.

  Raises:
    UserError: if there are fewer devices, or on a negative number.
  """
  devices = jax.devices()
  if num_devices < 0:
    raise UserError(f'--num_devices={num_devices} must not be negative.')
  if num_devices > len(devices):
    raise UserError(
      f'--num_devices={num_devices}, but only {len(devices)} '
      f'{devices[0].platform} device(s) exist.'
    )
  return Mesh(np.array(devices[: num_devices or len(devices)]), (CLIENTS,))


def deal(work: np.ndarray) -> np.ndarray:
  """An order of clients in which contiguous halves, quarters, ... balance.

  Clients are dealt from the largest down to two hands of equal count, each to
  the lighter one, and each hand is dealt again. The order does not depend on
  the device count, so neither do checkpoints.

  Args:
    work: [M] how much each client costs.

  Returns:
    [M] int64 positions.
  """
  work = np.asarray(work, np.float64)

  def halves(clients: list[int], depth: int) -> list[int]:
    if len(clients) < 2 or depth == _DEALS:
      return clients
    room = len(clients) - len(clients) // 2, len(clients) // 2
    hands: tuple[list[int], list[int]] = ([], [])
    load = [0.0, 0.0]
    for client in clients:
      hand = int(load[1] < load[0])
      if len(hands[hand]) == room[hand]:
        hand = 1 - hand
      hands[hand].append(client)
      load[hand] += work[client]
    return halves(hands[0], depth + 1) + halves(hands[1], depth + 1)

  return np.array(halves(np.argsort(-work, kind='stable').tolist(), 0), np.int64)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """The tree's arrays, whole on every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def split_clients(tree: Any, mesh: Mesh) -> Any:
  """Constrains the leading axis of every leaf to be split over 'clients'."""
  sharding = NamedSharding(mesh, PartitionSpec(CLIENTS))
  return jax.lax.with_sharding_constraint(tree, sharding)


def per_device(
  fn: Callable[..., Any], mesh: Mesh | None, num_split: int
) -> Callable[..., Any]:
  """Runs `fn` on each device's clients.

  Args:
    fn: maps arrays to rows and sums: a tree of arrays with a leading client
      axis, and a tree to be summed over devices; either may be None.
    mesh: from `client_mesh`; None where there is nothing to split.
    num_split: how many of the first arguments have a leading client axis; the
      others are whole on every device.
  """
  if mesh is None or mesh.size == 1:
    return fn

  def on_one(*args: Any) -> Any:
    rows, sums = fn(*args)
    return rows, jax.lax.psum(sums, CLIENTS)

  def run(*args: Any) -> Any:
    specs = [
      PartitionSpec(CLIENTS) if i < num_split else PartitionSpec()
      for i in range(len(args))
    ]
    return jax.shard_map(
      on_one,
      mesh=mesh,
      in_specs=tuple(specs),
      out_specs=(PartitionSpec(CLIENTS), PartitionSpec()),
      check_vma=False,
    )(*args)

  return run


def add_up(
  count: int,
  add: Callable[[jax.Array, tuple[Any, Any]], tuple[Any, Any]],
  rows: Any,
  sums: Any,
) -> tuple[Any, Any]:
  """`jax.lax.fori_loop(0, count, add, (rows, sums))`, but sums in two levels.

  About sqrt(count) terms are added up from zero before their sum joins the others.
  The rounding error then grows with sqrt(count) instead of count: in float32, a
  million equal terms one after the other give 1 % too much, in two levels 0.01 %.

  Args:
    count: number of terms.
    add: (i, (rows, sums)) -> the same; it adds a term to sums, and its rows do not
      depend on sums.
    rows: arrays to overwrite.
    sums: arrays to add to.
  """
  if count <= _GROUP:
    return jax.lax.fori_loop(0, count, add, (rows, sums))
  group = math.isqrt(count)
  nothing = jax.tree.map(jnp.zeros_like, sums)

  def add_group(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
    rows, sums = carry
    last = jnp.minimum((i + 1) * group, count)
    rows, part = jax.lax.fori_loop(i * group, last, add, (rows, nothing))
    return rows, jax.tree.map(jnp.add, sums, part)

  return jax.lax.fori_loop(0, -(-count // group), add_group, (rows, sums))


def map_chunks(
  body: Callable[[jax.Array, Any, Any], tuple[Any, Any]],
  work: jax.Array,
  clients_per_chunk: int,
  sums: Any = None,
  into: Any = None,
) -> tuple[Any, Any]:
  """Runs `body` on chunks of clients in order of decreasing work.

  Clients of like work share a chunk, so a chunk that lasts as long as its
  longest client wastes little.

  Args:
    body: slots [C] int32, their rows of `into` and sums -> tree of [C, ...] and sums,
      to which it adds; a slot S is an empty place.
    work: [S] int32 how long each client takes.
    clients_per_chunk: C; it does not affect the result beyond rounding.
    sums: arrays to add to.
    into: arrays [S, ...] to overwrite with rows, a prefix of the tree that `body`
      returns, None for new ones. Fresh memory costs more than the rows.

  Returns:
    Tree of [S, ...] in the order of `work`, and what the last chunk left.
  """
  num_clients = work.shape[0]
  num_chunks = -(-num_clients // max(1, clients_per_chunk))
  chunk = -(-num_clients // num_chunks)  # As few empty places as can be.
  order = jnp.argsort(-work).astype(jnp.int32)
  padding = jnp.full(num_chunks * chunk - num_clients, num_clients, jnp.int32)
  order = jnp.concatenate([order, padding])

  def write(whole: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    if chunk == 1:  # A slice is written in place; a scatter would loop.
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, slots[0], 0)
    return whole.at[slots].set(rows, mode='drop')

  def read(whole: jax.Array, slots: jax.Array) -> jax.Array:
    if chunk == 1:
      return jax.lax.dynamic_slice_in_dim(whole, slots[0], 1)
    return whole.at[slots].get(mode='clip')

  absent = lambda x: x is None

  def old_rows(out: Any, slots: jax.Array) -> Any:
    given = lambda i, o: None if i is None else read(o, slots)
    return jax.tree.map(given, into, out, is_leaf=absent)

  def run(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
    out, sums = carry
    slots = jax.lax.dynamic_slice_in_dim(order, i * chunk, chunk)
    rows, sums = body(slots, old_rows(out, slots), sums)
    return jax.tree.map(lambda o, r: write(o, slots, r), out, rows), sums

  some = jax.ShapeDtypeStruct((chunk,), jnp.int32)
  shapes, _ = jax.eval_shape(
    lambda slots, sums: body(slots, old_rows(into, slots), sums), some, sums
  )
  new = lambda s: jnp.zeros((num_clients, *s.shape[1:]), s.dtype)
  fill = lambda old, s: jax.tree.map(new, s) if old is None else old
  out = jax.tree.map(fill, into, shapes, is_leaf=absent)
  return add_up(num_chunks, run, out, sums)


def map_one_or_many(fn: Callable[..., Any], size: int) -> Callable[..., Any]:
  """`jax.vmap(fn)`, but without a batch axis inside when there is one client.

  A batch axis of one still turns convolutions into grouped ones, which are
  slow; large models on CPU therefore run client by client without it.
  """
  if size > 1:
    return jax.vmap(fn)

  def one(*args: Any) -> Any:
    out = fn(*jax.tree.map(lambda x: x[0], args))
    return jax.tree.map(lambda x: x[None], out)

  return one


def setup_devices(num_devices: int = 0) -> None:
  """One XLA device per CPU core; call it before anything else uses JAX.

  Splitting clients over one-core devices is much faster than letting all cores
  share each small operation. An accelerator keeps its devices; there products are
  made to have float32's precision, as on a CPU, unless JAX_DEFAULT_MATMUL_PRECISION
  says otherwise (GPUs and TPUs would round factors to 10 or 7 bits).
  Compiled programs are kept between runs in ~/.cache/fesem_jax (or
  JAX_COMPILATION_CACHE_DIR).

  Args:
    num_devices: CPU devices to make; 0 is one for each core this process may use.
  """
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else None
  count = max(0, num_devices) or cores or os.cpu_count() or 1
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError as e:
    raise UserError('Call setup_devices() before anything else uses JAX.') from e
  if jax.config.values['jax_compilation_cache_dir'] is None:
    cache = pathlib.Path.home() / '.cache' / 'fesem_jax'
    jax.config.update('jax_compilation_cache_dir', str(cache))
  chosen = jax.config.values['jax_default_matmul_precision']
  if chosen is None and jax.default_backend() != 'cpu':
    jax.config.update('jax_default_matmul_precision', 'highest')


def default_clients_per_chunk(params: Any, num_clients: int, mesh: Mesh) -> int:
  """How many clients to train side by side on a device.

  On CPU, convolutions mapped over clients become grouped ones, which are slow,
  and large dense models fill the cache alone; only small dense models gain from
  company. An accelerator wants many clients, as far as a quarter of its memory.

  Args:
    params: one model (shapes suffice).
    num_clients: S.
    mesh: devices the cohort is split over.
  """
  leaves = jax.tree.leaves(params)
  size = sum(x.size for x in leaves)
  on_each = -(-num_clients // mesh.size)
  device = mesh.devices.flat[0]
  if device.platform == 'cpu':
    if any(x.ndim == 4 for x in leaves):
      return 1
    return max(1, min(64, 200_000 // size, on_each))
  stats = device.memory_stats() or {}
  budget = stats.get('bytes_limit', 16 * 2**30) // 4
  # Weights, gradients, start and the optimizer's update: about six copies. Patches
  # of convolutions at an evaluation's batch of 128 take up to 120 MB a client.
  each = 24 * size + (120 * 2**20 if any(x.ndim == 4 for x in leaves) else 0)
  return max(1, min(on_each, budget // each))
