"""The examples of all clients."""

import dataclasses
import math
from collections.abc import Sequence
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
  def of_models(self) -> bool:
    """True if bad clients send models other than those that they trained."""
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

  Client i owns rows `offsets[i]:offsets[i + 1]` of `x` and `y`. Skewed client sizes
  therefore need no padding, and a client may have no rows.

  If the data are split by client over D devices (`placement`), `x` and `y` are
  [D * R, ...]: each device holds the rows of its clients, followed by padding to R
  rows. `offsets` do not count padding; `shard_rows` contains the range of rows of each
  device. Within `per_device`, a device sees its own R rows and its own row of
  `shard_rows`.

  Attributes:
    x: [T, ...] uint8 or float32 features; the input of a model is `x * scale`. On the
      host they may be mapped from a file.
    y: [T] int32 labels in 0..L-1; with several labels for each example [T, L] int32
      zeros and ones; for a regression [T, L] float32 targets; for sequences [T, S]
      int32 tokens in 0..L-1, -1 at positions without a target.
    offsets: [M + 1] int32 row boundaries.
    client_ids: [M] int32 ids from which random keys are folded: 0, 1, ... in the order
      in which clients were given; a client keeps its id when clients are reordered.
    num_classes: L, number of outputs of a model: classes, targets or tokens.
    scale: factor of `x`, e.g. 1 / 255.
    max_examples: maximum number of rows of a client.
    info: names and true clusters, on the host.
    attack: bad clients; None if all clients are honest. See `data.attacks`.
    shard_rows: [D, 2] int32 first row of each device, and the row after its last,
      counted as in `offsets`; None if all rows are on every device.
    flat_from: shape of one example if `x` is flattened to [T, F], as on devices, with
      zeros as padding (`placement.width_of`); None if `x` has the original shape.
    task: name of the task of `y`, a key of `tasks.TASKS`.
    groups: the true groups, which only the oracle uses; None for all other methods. See
      `data.with_true_groups`.
    weights: [M] float32 weights of clients in means, from `ClientInfo.weights`, which
      only `weighting=by_weight` uses; None if they have none.
    server_test: x [T, ...] and y [T, ...] of no client, on the host, of a test split;
      see `with_server_test`. Data on devices have None.
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

  @property
  def num_clients(self) -> int:
    """M, including clients without rows."""
    return self.client_ids.shape[0]

  @property
  def example_shape(self) -> tuple[int, ...]:
    """Shape of one example."""
    return tuple(self.x.shape[1:]) if self.flat_from is None else self.flat_from

  def sizes(self, ids: jax.Array | None = None) -> jax.Array:
    """Number of examples of each client of `ids` ([S], default all M), int32.

    The id M is an empty slot of size 0. If a device sees only its own rows, clients of
    other devices also have size 0.
    """
    if ids is None:
      offsets = self.offsets
      if not isinstance(offsets, jax.core.Tracer):
        offsets = np.asarray(offsets)  # Otherwise each operation would be compiled.
      return offsets[1:] - offsets[:-1]
    first = jnp.asarray(self.offsets).at[ids].get(mode='clip')
    last = jnp.asarray(self.offsets).at[ids + 1].get(mode='clip')
    if self.shard_rows is None or self.shard_rows.shape[0] > 1:
      return last - first
    begin, end = self.shard_rows[0, 0], self.shard_rows[0, 1]
    return jnp.where((first >= begin) & (last <= end), last - first, 0)

  def keys_of(self, key: jax.Array, ids: jax.Array) -> jax.Array:
    """[S] keys of clients `ids`, folded from the key and the client's id."""
    client_ids = jnp.asarray(self.client_ids).at[ids].get(mode='clip')
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)

  def weights_of(self, ids: jax.Array) -> jax.Array | None:
    """[S] float32 `weights` of clients `ids`, 0 for M; None if they have none."""
    if self.weights is None:
      return None
    return jnp.asarray(self.weights).at[ids].get(mode='fill', fill_value=0)

  def ids_of(self, names: Sequence[str]) -> np.ndarray:
    """[S] int32 `client_ids` of clients by their names, on the host.

    Raises:
      UserError: if no client has one of the names, or several have.
    """
    ids = np.asarray(self.client_ids)
    of_names = []
    for name in names:
      places = np.flatnonzero(self.info.names == name)
      check(len(places) == 1, f'names: {len(places)} clients are called {name!r}')
      of_names.append(ids[places[0]])
    return np.array(of_names, np.int32)

  def positions(self, client_ids: HostOrDeviceArray) -> jax.Array:
    """[S] int32 positions of the clients with these ids; M where none has the id.

    Inside of a run, clients lie in an order of their sizes, on their devices.
    """
    wanted, own = jnp.asarray(client_ids), jnp.asarray(self.client_ids)
    order = jnp.argsort(own)
    near = order.at[jnp.searchsorted(own[order], wanted)].get(mode='clip')
    return jnp.where(own[near] == wanted, near, self.num_clients).astype(jnp.int32)

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
    held = np.asarray(self.shard_rows)
    shards = np.split(rows, len(held))
    return np.concatenate(
      [part[: last - first] for part, (first, last) in zip(shards, held, strict=True)]
    )

  def reorder(self, order: np.ndarray, num_clients: int = 0) -> 'FederatedData':
    """Reorders the clients, with their ids, names and clusters, on the host.

    Args:
      order: distinct positions of clients; others are removed.
      num_clients: pads with clients without examples up to this number.
    """
    first, last = np.asarray(self.offsets)[:-1], np.asarray(self.offsets)[1:]
    sizes = (last - first)[order]
    before = np.cumsum(sizes) - sizes  # Number of rows of the preceding clients.
    rows = np.repeat(first[order] - before, sizes) + np.arange(sizes.sum())
    ids = np.asarray(self.client_ids)
    padding = max(0, num_clients - len(order))
    truth = self.info.clusters
    attack = self.attack
    if attack is not None:
      bad = np.pad(np.asarray(attack.bad)[order], (0, padding))
      attack = dataclasses.replace(attack, bad=bad)
    groups = self.groups
    if groups is not None:
      own = np.pad(np.asarray(groups.ids)[order], (0, padding))
      groups = dataclasses.replace(groups, ids=own)
    weights = None if self.weights is None else np.asarray(self.weights)[order]
    return FederatedData(
      x=_take(self.compact(self.x), rows),
      y=_take(self.compact(self.y), rows),
      offsets=np.cumsum(np.concatenate([[0], sizes, [0] * padding])).astype(np.int32),
      client_ids=np.concatenate(
        [ids[order], ids.max(initial=-1) + 1 + np.arange(padding)]
      ).astype(np.int32),
      num_classes=self.num_classes,
      scale=self.scale,
      max_examples=self.max_examples,
      info=dataclasses.replace(
        self.info,
        names=self.info.names[order],
        clusters=None if truth is None else truth[order],
        weights=weights,
      ),
      attack=attack,
      flat_from=self.flat_from,
      task=self.task,
      groups=groups,
      weights=None if weights is None else np.pad(weights, (0, padding)),
      server_test=self.server_test,
    )

  def with_server_test(self, x: np.ndarray, y: np.ndarray) -> 'FederatedData':
    """Adds a test set of the server, on which `simulate` evaluates shared models.

    Args:
      x: [T, ...] features of the dtype and the range of the split's.
      y: [T] or [T, ...] targets of its task.

    Raises:
      UserError: if they do not fit the split, or each other.
    """
    sizes, task = np.array([len(x)]), self.task
    options: Any = {'num_classes': self.num_classes, 'scale': self.scale, 'task': task}
    split = FederatedData.from_arrays(x, y, sizes, **options)
    kinds = [f'{s.x.dtype} {s.example_shape}' for s in (split, self)]
    check(len(split.y), 'server_test: has no examples')
    check(
      kinds[0] == kinds[1], f'server_test: x is {kinds[0]}; clients have {kinds[1]}'
    )
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
      x: [T, ...] features, also of a file; uint8 is kept, other types become
        float32.
      y: [T] integer labels, or other targets of the task; see the class.
      sizes: [M] number of rows of each client, in order; they sum to T.
      num_classes: L; by default one more than the largest label or token, or the
        number of targets.
      scale: see the class and, for the default, `scale_of`.
      client_ids: [M]; 0..M-1 by default.
      info: names, true clusters and weights; by default, the client ids as names.
      task: of `y`; see `tasks.TASKS`.

    Raises:
      UserError: if lengths disagree, `y` does not fit the task (e.g. labels that are
        not whole numbers in 0..L-1, one for each example), a feature is not finite,
        uint8 features need a `scale`, or a size, an id or the scale is out of range.
    """
    ranges.check_choice('task', task, tuple(tasks.TASKS))
    masked = [name for name, rows in (('x', x), ('y', y)) if np.ma.is_masked(rows)]
    check(
      not masked, f'{", ".join(masked)}: masked array; fill or remove the masked rows'
    )
    x = np.asarray(x)
    check(x.dtype.kind in 'biuf', f'x: must be numbers; got {x.dtype}')
    check(len(x) < 2**31, f'x: must have fewer than 2^31 rows; got {len(x)}')
    x = np.ascontiguousarray(x)
    y = tasks.TASKS[task].targets(y, 'y', num_classes)
    check(len(x) == len(y), f'y: has {len(y)} rows; x has {len(x)}')
    if x.dtype != np.uint8:
      x = x.astype(np.float32)
      finite = bool(np.isfinite(x).all())
      check(finite, 'x: has NaN or infinity; fill them or leave out these rows')
    check_targets(x.shape, y, task, 'y')
    sizes, num_rows = np.asarray(sizes), len(x)
    whole = sizes.ndim == 1 and ((sizes >= 0) & (sizes == np.floor(sizes))).all()
    check(whole, 'sizes: must be an integer from 0 for each client')
    check(
      sizes.sum() == num_rows, f'sizes: sum to {sizes.sum():g}; x has {num_rows} rows'
    )
    sizes = sizes.astype(np.int64)
    ids = np.arange(len(sizes)) if client_ids is None else np.asarray(client_ids)
    whole = ids.shape == sizes.shape and ids.dtype.kind in 'iu'
    check(whole, f'client_ids: must be {len(sizes)} integers')
    in_range = len(np.unique(ids)) == len(ids) and ((ids >= 0) & (ids < 2**31)).all()
    check(in_range, 'client_ids: must be distinct and from 0 to 2^31 - 1')
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


def _take(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Some rows, so that CPU devices share their memory instead of copying it."""
  shape, line = (len(rows), *x.shape[1:]), 64
  size = math.prod(shape) * x.dtype.itemsize
  raw = np.empty(size + line, np.uint8)
  start = -raw.ctypes.data % line
  aligned = raw[start : start + size].view(x.dtype).reshape(shape)
  return np.take(x, rows, axis=0, out=aligned, mode='clip')


def scale_of(x: np.ndarray, where: str) -> float:
  """The default factor of features x [T, ...].

  It is 1 / 255 for uint8 images, [T, H, W] or [T, H, W, C], and 1 for other dtypes.
  Raises `UserError` if x is uint8 and [T, F], which may be pixels or e.g. tokens;
  `where` is the source file or argument, for this message.
  """
  is_bytes = x.dtype == np.uint8
  known = not is_bytes or x.ndim >= 3
  check(
    known, f'{where}: uint8 of shape {x.shape} needs scale (1/255 pixels, 1 tokens)'
  )
  return 1 / 255 if is_bytes else 1.0


def check_targets(shape: tuple[int, ...], y: np.ndarray, task: str, where: str) -> None:
  """Raises `UserError` unless sequences have a target at every position.

  x has `shape` [T, ...], y [T, ...] is as `Task.targets` makes it, and `task` is a key
  of `tasks.TASKS`. `where` is the source file or argument of y, for the message.
  """
  outputs = y.shape[1] if y.ndim > 1 else 1
  expected = tasks.TASKS[task].target_shape(len(y), shape[1:], outputs)
  check(y.shape == expected, f'{where}: has shape {y.shape}; {task} needs {expected}')
