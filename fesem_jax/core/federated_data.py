"""The examples of all clients."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import tasks
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.types import HostOrDeviceArray
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Attack:
  """The bad clients, and what they do; see `data.attacks`."""

  bad: HostOrDeviceArray  # [M] bool, True for bad clients, in the order of the clients
  kinds: tuple[Any, ...] = dataclasses.field(metadata={'static': True})

  @property
  def poisons_models(self) -> bool:
    """True if bad clients send other models than they trained."""
    return any(hasattr(kind, 'send') for kind in self.kinds)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Groups:
  """The true group of each client, for a method that knows it."""

  ids: HostOrDeviceArray  # [M] int32 in 0..G-1, in the order of the clients
  count: int = dataclasses.field(metadata={'static': True})  # G


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FederatedData:
  """One split (training or test) of the examples of all clients, concatenated.

  Client i owns rows `offsets[i]:offsets[i + 1]` of `x` and `y`; it may have none.

  Split by client over D devices (`placement`), `x` and `y` are [D * R, ...]: each
  device holds its clients' rows, padded to R. `offsets` do not count padding. Within
  `per_device`, a device sees its own R rows and its own row of `shard_rows`.

  Attributes:
    x: [T, ...] uint8 or float32 features; the input of a model is `x * scale`.
    y: [T] int32 labels in 0..L-1; for several labels [T, L] int32 zeros and ones; for a
      regression [T, L] float32; for sequences [T, S] int32 tokens, -1 where no target
      is.
    offsets: [M + 1] int32 row boundaries.
    client_ids: [M] int32 ids from which random keys are folded; a client keeps its id
      when clients are reordered.
    num_classes: L, outputs of a model: classes, targets or tokens.
    scale: factor of `x`, e.g. 1 / 255.
    max_examples: rows of the largest client.
    info: names and true clusters, on the host.
    attack: bad clients; see `data.attacks`. None if all are honest.
    shard_rows: [D, 2] int32 first row of each device and the row after its last, as
      `offsets` count; None if all rows are on every device.
    flat_from: shape of an example if `x` is [T, F], as on devices
      (`placement.width_of`).
    task: name of the task of `y`, a key of `tasks.TASKS`.
    groups: true groups, for the oracle alone; see `data.with_true_groups`.
    weights: [M] float32 weights of clients, for `weighting=by_weight`, or None.
    server_test: x [T, ...] and y [T, ...] of no client, on the host; see
      `with_server_test`.
  """

  x: HostOrDeviceArray
  y: HostOrDeviceArray
  offsets: HostOrDeviceArray
  client_ids: HostOrDeviceArray
  num_classes: int = dataclasses.field(metadata={'static': True})
  scale: float = dataclasses.field(metadata={'static': True})
  max_examples: int = dataclasses.field(metadata={'static': True})
  info: ClientInfo = dataclasses.field(metadata={'static': True})
  attack: Attack | None = None
  shard_rows: HostOrDeviceArray = None
  flat_from: tuple[int, ...] | None = dataclasses.field(
    default=None, metadata={'static': True}
  )
  task: str = dataclasses.field(default=CLASSIFICATION.name, metadata={'static': True})
  groups: Groups | None = None
  weights: HostOrDeviceArray = None
  server_test: tuple[np.ndarray, np.ndarray] | None = None

  def __repr__(self) -> str:
    x, y = (getattr(array, 'shape', None) for array in (self.x, self.y))
    return f'FederatedData({self.num_clients} clients, x {x}, y {y}, {self.task})'

  @property
  def num_clients(self) -> int:
    """M, including clients without rows."""
    return self.client_ids.shape[0]

  @property
  def example_shape(self) -> tuple[int, ...]:
    """Shape of one example."""
    return tuple(self.x.shape[1:]) if self.flat_from is None else self.flat_from

  def sizes(self, ids: jax.Array | None = None) -> jax.Array:
    """Examples of each client of `ids` ([S], default all M), int32; 0 for the id M."""
    if ids is None:
      offsets = self.offsets
      if not isinstance(offsets, jax.core.Tracer):
        offsets = np.asarray(offsets)  # Otherwise each operation would be compiled.
      return offsets[1:] - offsets[:-1]
    first, last = (_entries(self.offsets, places) for places in (ids, ids + 1))
    if self.shard_rows is None or self.shard_rows.shape[0] > 1:
      return last - first
    begin, end = self.shard_rows[0, 0], self.shard_rows[0, 1]
    return jnp.where((first >= begin) & (last <= end), last - first, 0)

  def keys_of(self, key: jax.Array, ids: jax.Array) -> jax.Array:
    """[S] keys of clients `ids`, folded from the key and the client's id."""
    client_ids = _entries(self.client_ids, ids)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)

  def weights_of(self, ids: jax.Array) -> jax.Array | None:
    """[S] float32 `weights` of clients `ids`, 0 for M; None if they have none."""
    if self.weights is None:
      return None
    return jnp.asarray(self.weights).at[ids].get(mode='fill', fill_value=0)

  def positions(self, client_ids: HostOrDeviceArray) -> jax.Array:
    """[S] int32 positions of the clients with these ids; M where there is none."""
    requested, ids = jnp.asarray(client_ids), jnp.asarray(self.client_ids)
    order = jnp.argsort(ids)
    match = order.at[jnp.searchsorted(ids[order], requested)].get(mode='clip')
    return jnp.where(ids[match] == requested, match, self.num_clients).astype(jnp.int32)

  def client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of client `i` on the host: x [N, ...], y [N]."""
    # Whole arrays: on a device, a slice would be compiled for every length.
    y, offsets = np.asarray(self.y), np.asarray(self.offsets)
    x, first, last = np.asarray(self.x), offsets[i], offsets[i + 1]
    if self.shard_rows is not None:
      num_devices = len(self.shard_rows)
      device = i * num_devices // self.num_clients
      shift = device * (len(x) // num_devices) - np.asarray(self.shard_rows)[device, 0]
      first, last = first + shift, last + shift
    x = x[first:last]
    if self.flat_from is not None:
      x = x[:, : math.prod(self.flat_from)].reshape(len(x), *self.flat_from)
    return x, y[first:last]

  def compact(self, rows: HostOrDeviceArray) -> np.ndarray:
    """`x` or `y` on the host, without the padding of shards: [T, ...]."""
    rows = np.asarray(rows)
    if self.shard_rows is None:
      return rows
    counts = np.diff(np.asarray(self.shard_rows))[:, 0]
    shards = np.split(rows, len(counts))
    return np.concatenate([s[:n] for s, n in zip(shards, counts, strict=True)])

  def reorder(self, order: np.ndarray, num_clients: int = 0) -> 'FederatedData':
    """The clients at positions `order`, padded to `num_clients`, on the host."""
    first, last = np.asarray(self.offsets)[:-1], np.asarray(self.offsets)[1:]
    sizes = (last - first)[order]
    first_rows = np.cumsum(sizes) - sizes  # Rows of the preceding clients.
    rows = np.repeat(first[order] - first_rows, sizes) + np.arange(sizes.sum())
    ids = np.asarray(self.client_ids)
    padding = max(0, num_clients - len(order))
    new_ids = ids.max(initial=-1) + 1 + np.arange(padding)

    def padded(values: Any) -> np.ndarray:
      return np.pad(np.asarray(values)[order], (0, padding))

    def per_client(values: Any) -> Any:
      return None if values is None else np.asarray(values)[order]

    info, attack, groups = self.info, self.attack, self.groups
    return dataclasses.replace(
      self,
      x=_take(self.compact(self.x), rows),
      y=_take(self.compact(self.y), rows),
      offsets=np.cumsum(np.pad(sizes, (1, padding))).astype(np.int32),
      client_ids=np.concatenate([ids[order], new_ids]).astype(np.int32),
      info=dataclasses.replace(
        info,
        names=info.names[order],
        clusters=per_client(info.clusters),
        weights=per_client(self.weights),
      ),
      attack=attack and dataclasses.replace(attack, bad=padded(attack.bad)),
      shard_rows=None,
      groups=groups and dataclasses.replace(groups, ids=padded(groups.ids)),
      weights=None if self.weights is None else padded(self.weights),
    )

  def with_server_test(self, x: np.ndarray, y: np.ndarray) -> 'FederatedData':
    """Adds x and y [T, ...] of the server, on which `simulate` tests shared models."""
    options: Any = {n: getattr(self, n) for n in ('num_classes', 'scale', 'task')}
    split = FederatedData.from_arrays(x, y, np.array([len(x)]), **options)
    check(len(split.y), 'server_test: has no examples')
    new, clients = (f'{s.x.dtype} {s.example_shape}' for s in (split, self))
    check(new == clients, f'server_test: x is {new}; clients have {clients}')
    return dataclasses.replace(self, server_test=(split.x, split.y))

  @classmethod
  @ranges.checked
  def from_arrays(
    cls,
    x: np.ndarray,
    y: np.ndarray,
    sizes: np.ndarray,
    *,
    num_classes: ranges.Count | None = None,
    scale: float | None = None,
    client_ids: np.ndarray | None = None,
    info: ClientInfo | None = None,
    task: str = CLASSIFICATION.name,
  ) -> 'FederatedData':
    """Builds a split from rows in the order of their clients.

    Args:
      x: [T, ...] features, also mapped from a file; uint8 stays, all else becomes
        float32.
      y: [T] integer labels, or other targets of the task; see the class.
      sizes: [M] rows of each client, which sum to T.
      num_classes: L; by default as y says.
      scale: by default as `scale_of` says.
      client_ids: [M]; 0..M-1 by default.
      info: names, true clusters and weights; by default, the client ids as names.
      task: of `y`; see `tasks.TASKS`.

    Raises:
      UserError: naming the argument that does not fit.
    """
    ranges.check_choice('task', task, tuple(tasks.TASKS))
    check(len(x) < 2**31, f'x: must have fewer than 2^31 rows; got {len(x)}')
    x = np.ascontiguousarray(features(x, 'x'))
    check(not np.ma.is_masked(y), 'y: is masked; drop or fill the masked values')
    y = tasks.TASKS[task].targets(y, 'y', num_classes)
    check(len(x) == len(y), f'y: has {len(y)} rows; x has {len(x)}')
    check_targets(x.shape, y, task, 'y')
    sizes = np.asarray(sizes)
    whole = sizes.ndim == 1 and ((sizes >= 0) & (sizes == np.floor(sizes))).all()
    check(whole, 'sizes: must be an integer from 0 for each client')
    total, sizes = sizes.sum(), sizes.astype(np.int64)
    check(total == len(x), f'sizes: sum to {total:g}; x has {len(x)} rows')
    ids = np.arange(len(sizes)) if client_ids is None else np.asarray(client_ids)
    valid = ids.shape == sizes.shape and ids.dtype.kind in 'iu'
    valid = valid and len(np.unique(ids)) == len(ids)
    valid = valid and ids.min(initial=0) >= 0 and ids.max(initial=0) < 2**31
    check(valid, f'client_ids: must be {len(sizes)} distinct integers below 2^31')
    if info is None:
      info = ClientInfo(np.array([str(i) for i in ids]))
    check(len(info.names) == len(sizes), f'info: must be of the {len(sizes)} clients')
    scale = scale_of(x, 'x') if scale is None else float(scale)
    limits = np.finfo(np.float32)
    check(limits.tiny <= scale <= limits.max, f'scale: must be positive; got {scale}')
    return cls(
      x=x,
      y=y,
      offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
      client_ids=ids.astype(np.int32),
      num_classes=int(num_classes or tasks.TASKS[task].count_outputs(y)),
      scale=scale,
      max_examples=max(1, int(sizes.max(initial=0))),
      info=info,
      task=task,
      weights=info.weights,
    )


def _entries(x: HostOrDeviceArray, ids: jax.Array) -> jax.Array:
  """Entries of clients `ids`; beyond the end, the last one."""
  return jnp.asarray(x).at[ids].get(mode='clip', wrap_negative_indices=False)


def _take(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Some rows, aligned, so that CPU devices share their memory in place of a copy."""
  shape, line = (len(rows), *x.shape[1:]), 64
  size = math.prod(shape) * x.dtype.itemsize
  raw = np.empty(size + line, np.uint8)
  start = -raw.ctypes.data % line
  aligned = raw[start : start + size].view(x.dtype).reshape(shape)
  return np.take(x, rows, axis=0, out=aligned, mode='clip')


def features(x: Any, name: str) -> np.ndarray:
  """Features as uint8 or finite float32; `UserError`, naming them, on others."""
  check(not np.ma.is_masked(x), f'{name}: is masked; drop or fill the masked values')
  x = np.asanyarray(x)  # Rows of a file stay there.
  check(x.dtype.kind in 'biuf', f'{name}: must be numbers; got {x.dtype}')
  if x.dtype == np.uint8:
    return x
  with np.errstate(over='ignore'):
    x = x.astype(np.float32)
  finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
  row = int(np.append(finite, False).argmin())
  check(row == len(x), f'{name}: row {row} is not finite; drop or fill it')
  return x


def scale_of(x: np.ndarray, where: str) -> float:
  """The default factor of x: 1 / 255 for uint8 images, 1 for other dtypes."""
  is_bytes = x.dtype == np.uint8
  fits = not is_bytes or x.ndim >= 3
  check(fits, f'{where}: uint8 of shape {x.shape} needs scale: 1/255 pixels, 1 tokens')
  return 1 / 255 if is_bytes else 1.0


def check_targets(shape: tuple[int, ...], y: np.ndarray, task: str, where: str) -> None:
  """Raises `UserError` unless y [T, ...] has the targets of a task for x of a shape."""
  outputs = y.shape[1] if y.ndim > 1 else 1
  expected = tasks.TASKS[task].target_shape(len(y), shape[1:], outputs)
  check(y.shape == expected, f'{where}: has shape {y.shape}; {task} needs {expected}')
