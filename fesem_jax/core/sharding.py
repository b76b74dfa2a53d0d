"""The 'clients' mesh axis, the distribution of clients over devices, and memory."""

import contextlib
import gc
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index, checked

CLIENTS = 'clients'

# Balances up to 2**10 devices.
_DEALS = 10

# Clients are padded to a multiple of this and of the device count, so that checkpoints
# do not depend on a device count that divides it.
_SHARDS = 8

# Whether models are identical on 1, 2 and 4 devices; see `setup_devices`.
is_identical = False

_GIB = 2**30


class Chip(NamedTuple):
  """One TPU chip, for compilation ahead of time."""

  memory: int  # bytes
  kind: str  # its name in JAX
  example: str  # a topology of these chips


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
CHIPS = {
  'v4': Chip(32 * _GIB, 'TPU v4', 'v4:2x2x1'),
  'v5e': Chip(16 * _GIB, 'TPU v5 lite', 'v5e:2x4'),
  'v5p': Chip(95 * _GIB, 'TPU v5', 'v5p:2x2x1'),
  'v6e': Chip(32 * _GIB, 'TPU v6 lite', 'v6e:2x4'),
}


def chip_memory(kind: str) -> int | None:
  """Memory in bytes of a chip that JAX calls `kind`; None if unknown."""
  return next((chip.memory for chip in CHIPS.values() if chip.kind == kind), None)


def num_shards(num_devices: int) -> int:
  """Shards of clients, a multiple of 8 and of the devices, which decide their order."""
  return math.lcm(_SHARDS, num_devices)


def divisor(mesh: Mesh) -> int:
  """Number that divides the places of a cohort."""
  return num_shards(mesh.size) if is_identical else mesh.size


def shards_per_device(mesh: Mesh | None, places: int) -> int:
  """Shards of so many clients that a device adds up one by one; 0: all at once."""
  if mesh is None or not is_identical or places % divisor(mesh):
    return 0
  return divisor(mesh) // mesh.size


@checked
def client_mesh(num_devices: Index = 0) -> Mesh:
  """A mesh of the first `num_devices` devices (0: all) along 'clients'.

  Each of several processes has equally many. Raises `UserError` on too few devices.
  """
  devices = jax.devices()
  exist = num_devices <= len(devices)
  check(exist, f'num_devices: only {len(devices)} {devices[0].platform} devices exist')
  divides = num_devices % processes.count() == 0
  check(divides, f'num_devices: must be a multiple of {processes.count()} processes')
  selected = devices[: num_devices or len(devices)]
  if num_devices and processes.count() > 1:
    share, owners = num_devices // processes.count(), [d.process_index for d in devices]
    selected = [d for i, d in enumerate(devices) if owners[:i].count(owners[i]) < share]
  return Mesh(np.array(selected), (CLIENTS,))


def deal(work: np.ndarray) -> np.ndarray:
  """[M] int64 order of clients that balances `work` in halves, quarters, ... of it."""
  work = np.asarray(work, np.float64)

  def halves(clients: np.ndarray, depth: int) -> np.ndarray:
    if len(clients) < 2 or depth == _DEALS:
      return clients
    costs = work[clients]
    if costs[0] == costs[-1] > 0:  # Sorted, so all have equal work.
      hands = [clients[::2], clients[1::2]]
    else:
      hands = dealt(clients.tolist(), costs.tolist())
    return np.concatenate([halves(hand, depth + 1) for hand in hands])

  def dealt(clients: list[int], costs: list[float]) -> list[np.ndarray]:
    room = len(clients) - len(clients) // 2, len(clients) // 2
    hands: tuple[list[int], list[int]] = ([], [])
    load = [0.0, 0.0]
    for client, cost in zip(clients, costs, strict=True):
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
  """The tree's arrays, the same in every process, on devices by their shardings."""
  if processes.count() == 1:
    return jax.device_put(tree, shardings)
  if isinstance(shardings, jax.sharding.Sharding):
    shardings = jax.tree.map(lambda _: shardings, tree)
  return jax.tree.map(_place_own_rows, tree, shardings)


def _place_own_rows(x: Any, sharding: jax.sharding.Sharding | None) -> Any:
  if sharding is None:  # An argument that the program does not read.
    return x
  if isinstance(x, jax.Array):
    if not x.is_fully_addressable:
      return jax.device_put(x, sharding)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      bits = _place_own_rows(jax.random.key_data(x), sharding)
      return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(x))
  whole = np.asarray(x)
  return jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])


def split_rows(
  shape: tuple[int, ...], part: Callable[[int], np.ndarray], mesh: Mesh
) -> jax.Array:
  """An array split over the devices; `part` returns the rows of a device."""
  on_each = shape[0] // mesh.size
  placed = NamedSharding(mesh, PartitionSpec(CLIENTS))

  def rows(index: Any) -> np.ndarray:
    return part((index[0].start or 0) // on_each)

  return jax.make_array_from_callback(shape, placed, rows)


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


def setup_devices(
  num_devices: int = 0, group: processes.Group | None = None, identical: bool = False
) -> None:
  """Creates one XLA device per CPU core; call it before any other use of JAX.

  Splitting clients over them is much faster than splitting each operation. Sets float32
  precision of products on accelerators and the cache of compiled programs in
  ~/.cache/fesem_jax, unless JAX's environment variables do; and lets Python collect
  garbage less often.

  `num_devices` are the CPU devices of all processes of `group`; 0 is one per core. With
  `identical`, models have the same bits on 1, 2 and 4 devices.
  Raises `RuntimeError` if JAX is in use or lacks the platform of JAX_PLATFORMS, and
  `UserError` if the processes cannot connect.
  """
  global is_identical
  is_identical, group = identical, group or processes.Group()
  if identical:  # Eigen splits some convolutions by the number of threads.
    os.environ['PJRT_NPROC'] = '4'
  share = -(-max(0, num_devices) // max(1, group.num_processes))
  jax.config.update('jax_num_cpu_devices', share or cores())
  if jax.config.values['jax_compilation_cache_dir'] is None:
    cache = pathlib.Path.home() / '.cache' / 'fesem_jax'
    jax.config.update('jax_compilation_cache_dir', str(cache))
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    # JAX does not cache programs that compile within a second by default.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  gc.set_threshold(100_000, 10, 10)
  processes.initialize(group)
  full_precision(jax.devices())


def full_precision(devices: Sequence[jax.Device]) -> None:
  """Sets float32 as the default precision of products on accelerators."""
  precision = jax.config.values['jax_default_matmul_precision']
  if precision is None and devices[0].platform != 'cpu':
    jax.config.update('jax_default_matmul_precision', 'highest')


def default_clients_per_chunk(params: Any, mesh: Mesh) -> int:
  """The most clients of one model `params` to train side by side on a device."""
  leaves = jax.tree.leaves(params)
  size = max(1, sum(x.size for x in leaves))
  device = mesh.devices.flat[0]
  if device.platform == 'cpu':
    if any(x.ndim == 4 for x in leaves):
      return 1
    return max(1, min(64, 200_000 // size))
  # Weights, gradients, start and the optimizer's update: about six copies. Patches of
  # convolutions in evaluation batches of 128 take up to 120 MB per client.
  client = 24 * size + (120 * 2**20 if any(x.ndim == 4 for x in leaves) else 0)
  return max(1, memory_for_clients(device) // client)


def memory_for_clients(device: jax.Device) -> int:
  """Bytes of an accelerator for clients side by side: a quarter of its memory."""
  # All processes must choose alike, and cannot communicate during tracing.
  several = processes.count() > 1
  total = chip_memory(device.device_kind) if several else memory(device)
  return (total or 16 * 2**30) // 4


def memory(device: jax.Device, beside: int = 1) -> int | None:
  """Bytes of a device of this process, or None; CPU devices share the host's."""
  if device.platform == 'cpu':
    total = host_memory()
    return total and total // beside
  try:
    stats = device.memory_stats() or {}
  except (jax.errors.JaxRuntimeError, NotImplementedError):
    stats = {}  # A device for compilation only.
  return stats.get('bytes_limit') or chip_memory(device.device_kind)


def own_memory(device: jax.Device) -> int | None:
  """Bytes of a device of its own, as of the first process; None for a CPU."""
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
