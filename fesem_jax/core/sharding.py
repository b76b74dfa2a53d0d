"""The 'clients' mesh axis, and the distribution of clients over devices.

Client stacks are split over the axis. Centers are replicated, and so are data unless
they are split by client (`placement`).
"""

import contextlib
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.core.chips import memory_of
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index, checked

CLIENTS = 'clients'

# Balances up to 2**10 devices.
_DEALS = 10

# Clients are padded to a multiple of this and of the device count, so that checkpoints
# do not depend on a device count that divides it.
_SHARDS = 8


def num_shards(num_devices: int) -> int:
  """Number of equal shards of clients, each on one device; at least 8.

  The order of clients depends on the number of devices only through this number.
  """
  return math.lcm(_SHARDS, num_devices)


@checked
def client_mesh(num_devices: Index = 0) -> Mesh:
  """A mesh of the first `num_devices` devices (0: all) along 'clients'.

  With several processes, each contributes equally many devices.

  Raises:
    UserError: if `num_devices` is more than there are, or not a multiple of the number
      of processes.
  """
  devices = jax.devices()
  exist = num_devices <= len(devices)
  check(exist, f'num_devices: only {len(devices)} {devices[0].platform} devices exist')
  divides = num_devices % processes.count() == 0
  check(divides, f'num_devices: must be a multiple of {processes.count()} processes')
  chosen = devices[: num_devices or len(devices)]
  if num_devices and processes.count() > 1:
    each, owners = num_devices // processes.count(), [d.process_index for d in devices]
    chosen = [d for i, d in enumerate(devices) if owners[:i].count(owners[i]) < each]
  return Mesh(np.array(chosen), (CLIENTS,))


def deal(work: np.ndarray) -> np.ndarray:
  """An order of clients, [M] int64 positions, with equal work in halves, quarters, ...

  Clients are assigned in order of decreasing work [M] to two contiguous halves of equal
  count, each to the half with less work; then each half is divided in the same way. The
  order, and therefore a checkpoint, does not depend on the device count.
  """
  work = np.asarray(work, np.float64)

  def halves(clients: np.ndarray, depth: int) -> np.ndarray:
    if len(clients) < 2 or depth == _DEALS:
      return clients
    own = work[clients]
    if own[0] == own[-1] > 0:  # Sorted, so all have equal work.
      hands = [clients[::2], clients[1::2]]
    else:
      hands = dealt(clients.tolist(), own.tolist())
    return np.concatenate([halves(hand, depth + 1) for hand in hands])

  def dealt(clients: list[int], own: list[float]) -> list[np.ndarray]:
    room = len(clients) - len(clients) // 2, len(clients) // 2
    hands: tuple[list[int], list[int]] = ([], [])
    load = [0.0, 0.0]
    for client, cost in zip(clients, own, strict=True):
      hand = int(load[1] < load[0])
      if len(hands[hand]) == room[hand]:
        hand = 1 - hand
      hands[hand].append(client)
      load[hand] += cost
    return [np.array(hand, np.int64) for hand in hands]

  return halves(np.argsort(-work, kind='stable').astype(np.int64), 0)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """The tree's arrays, replicated on every device of the mesh."""
  return place(tree, NamedSharding(mesh, PartitionSpec()))


def place(tree: Any, shardings: Any) -> Any:
  """The tree's arrays, the same in every process, placed on devices.

  `shardings` is one for all arrays, or a tree with one for each, or None for any.
  Arrays that are already distributed over processes stay on their devices.
  """
  if processes.count() == 1:
    return jax.device_put(tree, shardings)
  if isinstance(shardings, jax.sharding.Sharding):
    shardings = jax.tree.map(lambda _: shardings, tree)
  return jax.tree.map(_place_own_rows, tree, shardings)


def _place_own_rows(x: Any, sharding: jax.sharding.Sharding | None) -> Any:
  """An array to which every process contributes the rows of its devices."""
  if sharding is None:  # An argument that the program does not read.
    return x
  if isinstance(x, jax.Array):
    if not x.is_fully_addressable:
      return jax.device_put(x, sharding)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      bits = _place_own_rows(jax.random.key_data(x), sharding)
      return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(x))
  held = np.asarray(x)
  return jax.make_array_from_callback(held.shape, sharding, lambda i: held[i])


def split_rows(
  shape: tuple[int, ...], part: Callable[[int], np.ndarray], mesh: Mesh
) -> jax.Array:
  """An array whose leading axis is split over the devices of the mesh.

  The first axis of `shape`, that of the whole array, is a multiple of the number of
  devices D. `part` returns the rows of a device, from its number in 0..D-1; it is
  called for the devices of this process only.
  """
  on_each = shape[0] // mesh.size

  def of_device(index: Any) -> np.ndarray:
    return part((index[0].start or 0) // on_each)

  placed = NamedSharding(mesh, PartitionSpec(CLIENTS))
  return jax.make_array_from_callback(shape, placed, of_device)


def split_clients(tree: Any, mesh: Mesh) -> Any:
  """Constrains the leading axis of every leaf to be split over 'clients'."""
  sharding = NamedSharding(mesh, PartitionSpec(CLIENTS))
  return jax.lax.with_sharding_constraint(tree, sharding)


def on_all_devices(tree: Any, mesh: Mesh) -> Any:
  """Constrains arrays to be replicated on every device; for few values per client."""
  whole = NamedSharding(mesh, PartitionSpec())
  return jax.lax.with_sharding_constraint(tree, whole)


def cores() -> int:
  """Number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def setup_devices(num_devices: int = 0, group: processes.Group | None = None) -> None:
  """Creates one XLA device per CPU core; call it before any other use of JAX.

  Splitting clients over one-core devices is much faster than splitting each small
  operation over all cores. The devices of accelerators do not change. On these, the
  library sets the precision of its products (`LocalTraining.precision`). All other
  products, such as those of a custom method, use float32 precision as on a CPU, unless
  JAX_DEFAULT_MATMUL_PRECISION is set (by default, GPUs and TPUs round factors to 10 or
  7 bits). Compiled programs are cached in ~/.cache/fesem_jax (or
  JAX_COMPILATION_CACHE_DIR).

  Args:
    num_devices: number of CPU devices of all processes together; 0 for one per core of
      each process.
    group: the processes that run together; see `processes.initialize`. None for one.

  Raises:
    RuntimeError: if JAX is already in use, or cannot use the platform of JAX_PLATFORMS.
    UserError: if the processes cannot connect.
  """
  group = group or processes.Group()
  share = -(-max(0, num_devices) // max(1, group.num_processes))
  jax.config.update('jax_num_cpu_devices', share or cores())
  if jax.config.values['jax_compilation_cache_dir'] is None:
    cache = pathlib.Path.home() / '.cache' / 'fesem_jax'
    jax.config.update('jax_compilation_cache_dir', str(cache))
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    # JAX does not cache programs that compile within a second by default.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  processes.initialize(group)
  full_precision(jax.devices())


def full_precision(devices: Sequence[jax.Device]) -> None:
  """Sets float32 as the default precision of products on accelerators."""
  chosen = jax.config.values['jax_default_matmul_precision']
  if chosen is None and devices[0].platform != 'cpu':
    jax.config.update('jax_default_matmul_precision', 'highest')


def default_clients_per_chunk(params: Any, mesh: Mesh) -> int:
  """Number of clients to train side by side on a device, at most.

  On a CPU, convolutions mapped over clients become grouped convolutions, which are
  slow, and one large dense model fills the cache; only small dense models are faster
  side by side. On an accelerator, as many clients as fit into a quarter of its memory.
  `params` is one model; shapes suffice.
  """
  leaves = jax.tree.leaves(params)
  size = max(1, sum(x.size for x in leaves))
  device = mesh.devices.flat[0]
  if device.platform == 'cpu':
    if any(x.ndim == 4 for x in leaves):
      return 1
    return max(1, min(64, 200_000 // size))
  # Weights, gradients, start and the optimizer's update: about six copies. Patches of
  # convolutions in evaluation batches of 128 take up to 120 MB per client.
  each = 24 * size + (120 * 2**20 if any(x.ndim == 4 for x in leaves) else 0)
  return max(1, memory_for_clients(device) // each)


def memory_for_clients(device: jax.Device) -> int:
  """Bytes of an accelerator for clients side by side: a quarter of its memory."""
  # Only its own process can query a device, and all processes must choose alike. They
  # cannot communicate here, as this is called during tracing.
  several = processes.count() > 1
  known = memory_of(device.device_kind) if several else memory(device)
  return (known or 16 * 2**30) // 4


def memory(device: jax.Device, beside: int = 1) -> int | None:
  """Memory in bytes of a device of this process; None if unknown.

  `beside` counts the devices of the run on this machine; CPU devices share its memory.
  """
  if device.platform == 'cpu':
    total = host_memory()
    return total and total // beside
  try:
    stats = device.memory_stats() or {}
  except (jax.errors.JaxRuntimeError, NotImplementedError):
    stats = {}  # A device for compilation only.
  return stats.get('bytes_limit') or memory_of(device.device_kind)


def own_memory(device: jax.Device) -> int | None:
  """Memory that a device shares with no other, in bytes; None for a CPU or if unknown.

  With several processes, all must call it, outside of programs; the value is that of
  the first process.
  """
  if device.platform == 'cpu':
    return None
  if processes.count() == 1:
    return memory(device)
  return processes.from_first(lambda: memory(jax.local_devices()[0]))


def host_memory() -> int | None:
  """Memory limit of this machine or container in bytes; None if unknown."""
  limits = []
  with contextlib.suppress(ValueError, OSError, AttributeError):
    limits.append(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
  with contextlib.suppress(ValueError, OSError):  # 'max' without a limit.
    limits.append(int(pathlib.Path('/sys/fs/cgroup/memory.max').read_text()))
  return min(limits, default=None)
