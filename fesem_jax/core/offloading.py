"""Stacks of clients' models in host memory, each in one row, fetched to the devices."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.core import sharding
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check

# The tile of a TPU's memory: 8 sublanes of 128 lanes.
_LANES, _SUBLANES = 128, 8

# Up to this many rows, the transfers are unrolled; more are transferred in a loop.
_UNROLLED = 64


class Form(NamedTuple):
  """The structure of a model in a row: a pytree, and the shapes of its arrays."""

  tree: Any
  shapes: tuple[tuple[int, ...], ...]

  @property
  def size(self) -> int:
    """P, the number of parameters of one model."""
    return sum(map(math.prod, self.shapes))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Offloaded:
  """A stack of models [M, ...] in host memory, split over the mesh."""

  rows: jax.Array  # [M, B, 128] float32, a row for each model
  form: Form = dataclasses.field(metadata={'static': True})  # of one model
  mesh: Mesh = dataclasses.field(metadata={'static': True})

  def take(self, slots: jax.Array) -> Params:
    """Rows `slots` [C] on their device; slots beyond the end return the last row."""

    def row(slot: jax.Array) -> jax.Array:
      return _to_device(jax.lax.dynamic_slice_in_dim(self.rows, slot, 1))

    if len(slots) > _UNROLLED:
      rows = jax.lax.map(row, slots)[:, 0]
    else:  # Concurrent transfers.
      rows = jnp.concatenate([row(slot) for slot in slots])
    return unpack(_in_order(rows), self.form)

  def put(self, slots: jax.Array, models: Params) -> 'Offloaded':
    """The stack with models [C, ...] at `slots` [C]; the first slot is not empty."""
    new, rows = pack(models), self.rows
    if len(slots) > 1:  # Every slot is updated: empty slots repeat the first.
      filled = slots < rows.shape[0]
      slots = jnp.where(filled, slots, slots[0])
      new = jnp.where(filled[:, None, None], new, new[:1])

    def store(place: jax.Array | int, rows: jax.Array) -> jax.Array:
      row = _to_host(jax.lax.dynamic_slice_in_dim(new, place, 1))
      return jax.lax.dynamic_update_slice_in_dim(rows, row, slots[place], 0)

    unroll = len(slots) if len(slots) <= _UNROLLED else 1
    rows = jax.lax.fori_loop(0, len(slots), store, rows, unroll=unroll)
    return dataclasses.replace(self, rows=rows)

  def rows_of(self, ids: jax.Array) -> 'Offloaded':
    """Rows `ids` [S] on the devices that train the clients; zeros beyond the end."""
    number = self.mesh.size

    def on_device(rows, ids):
      first = _first_row(rows, number)

      def fetch(clients):
        # One client of each device; this device holds the rows of some.
        part = jnp.stack([_row_if_here(rows, i - first) for i in clients])
        if number > 1:
          part = jax.lax.psum_scatter(part, sharding.CLIENTS, scatter_dimension=0)
        return _to_host(part.reshape(part.shape[-2:]))

      return jax.lax.map(fetch, ids.reshape(number, -1).T), None

    rows = per_device(on_device, self.mesh, 1)(self.rows, ids)[0]
    return dataclasses.replace(self, rows=rows)

  def with_rows(self, ids: jax.Array, models: 'Offloaded | Params') -> 'Offloaded':
    """The stack with models [S, ...] of a cohort at `ids`; the inverse of `rows_of`."""
    number = self.mesh.size

    def on_device(rows, new, ids):
      first, clients = _first_row(rows, number), ids.reshape(number, -1).T

      def store(i, rows):
        row = _to_device(jax.lax.dynamic_slice_in_dim(new, i, 1))
        if number > 1:
          row = jax.lax.all_gather(row, sharding.CLIENTS, tiled=True)
        return _store_local(rows, clients[i] - first, row)

      return jax.lax.fori_loop(0, len(clients), store, rows), None

    new = models.rows if isinstance(models, Offloaded) else pack(models)
    rows = per_device(on_device, self.mesh, 2)(self.rows, new, ids)[0]
    return dataclasses.replace(self, rows=rows)

  def fetch(self, ids: jax.Array) -> Params:
    """A few rows `ids` [S], replicated on every device."""
    number = self.mesh.size

    def on_device(rows, ids):
      first = _first_row(rows, number)
      return None, jnp.stack([_row_if_here(rows, i - first) for i in ids])

    rows = per_device(on_device, self.mesh, 1)(self.rows, ids)[1]
    return unpack(rows, self.form)


def repeat(model: Params, count: int, mesh: Mesh) -> Offloaded:
  """A stack of equal models in host memory; `UserError` unless they are float32."""
  leaves, form = jax.tree.flatten(model)
  single = all(x.dtype == jnp.float32 for x in leaves)
  check(single, 'client_state: offloaded models must be float32')

  def on_device(model):
    row = pack(jax.tree.map(lambda x: x[None], model))[0]
    places = jnp.arange(count // mesh.size)
    return jax.lax.map(lambda _: _to_host(row), places), None

  rows = per_device(on_device, mesh, 0)(model)[0]
  return Offloaded(rows, Form(form, tuple(x.shape for x in leaves)), mesh)


def pack(stack: Params) -> jax.Array:
  """Rows [C, B, 128] of models [C, ...]."""
  parts = []
  for x in jax.tree.leaves(stack):
    flat = x.reshape(x.shape[0], -1)
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % _LANES)))
    parts.append(flat.reshape(x.shape[0], -1, _LANES))
  rows = jnp.concatenate(parts, axis=1)
  return jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % _SUBLANES), (0, 0)))


def unpack(rows: Any, form: Form) -> Params:
  """Models [C, ...] from their rows [C, B, 128], of JAX or NumPy."""
  leaves, first = [], 0
  for shape in form.shapes:
    size = math.prod(shape)
    last = first + -(-size // _LANES)
    flat = rows[:, first:last].reshape(rows.shape[0], -1)[:, :size]
    leaves.append(flat.reshape(rows.shape[0], *shape))
    first = last
  return jax.tree.unflatten(form.tree, leaves)


def as_arrays(models: Any) -> Any:
  """The tree with NumPy arrays [M, ...] in place of stacks in host memory."""

  def arrays(x: Any) -> Any:
    return unpack(np.asarray(x.rows), x.form) if is_offloaded(x) else x

  return jax.tree.map(arrays, models, is_leaf=is_offloaded)


def is_offloaded(x: Any) -> bool:
  """True if a stack is in host memory."""
  return isinstance(x, Offloaded)


def in_host_memory(mesh: Mesh) -> NamedSharding:
  """The sharding of a stack in host memory."""
  return NamedSharding(mesh, PartitionSpec(sharding.CLIENTS), memory_kind='pinned_host')


def placed(state: Any, mesh: Mesh) -> Any:
  """Shapes of a state; stacks in host memory get their sharding."""
  where = in_host_memory(mesh)

  def place(x: Any) -> Any:
    if not is_offloaded(x):
      return x
    return dataclasses.replace(x, rows=x.rows.update(sharding=where))

  return jax.tree.map(place, state, is_leaf=is_offloaded)


def _in_order(x: jax.Array) -> jax.Array:
  """Constrains the layout to row-major; else the TPU compiler fails on single rows."""
  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _to_device(row: jax.Array) -> jax.Array:
  return _in_order(jax.device_put(row, jax.memory.Space.Device))


def _to_host(row: jax.Array) -> jax.Array:
  return jax.device_put(_in_order(row), jax.memory.Space.Host)


def _first_row(rows: jax.Array, number: int) -> jax.Array | int:
  """Position in the whole stack of the first row on this device."""
  if number == 1:
    return 0
  return jax.lax.axis_index(sharding.CLIENTS) * rows.shape[0]


def _row_if_here(rows: jax.Array, place: jax.Array) -> jax.Array:
  """Row `at` of this device, or zeros if another device holds it."""

  def read() -> jax.Array:
    return _to_device(jax.lax.dynamic_index_in_dim(rows, place, keepdims=False))

  is_local = (place >= 0) & (place < rows.shape[0])
  return jax.lax.cond(is_local, read, lambda: jnp.zeros(rows.shape[1:]))


def _store_local(rows: jax.Array, place: jax.Array, new: jax.Array) -> jax.Array:
  """The rows with those of `new` [D, B, 128] whose `at` [D] is on this device."""
  is_local = (place >= 0) & (place < rows.shape[0])
  order = jnp.argsort(~is_local)

  def store(i: jax.Array, rows: jax.Array) -> jax.Array:
    row = jax.lax.dynamic_index_in_dim(new, order[i], keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(rows, _to_host(row), place[order[i]], 0)

  # A loop, because the TPU compiler crashes on a conditional with a single row.
  return jax.lax.fori_loop(0, is_local.sum(), store, rows)
