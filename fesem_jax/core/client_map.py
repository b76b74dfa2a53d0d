"""Maps over the clients of a cohort, split over devices and processed in chunks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.batching import SIDE
from fesem_jax.core.chunk_order import Chunks, ChunkSize, in_chunks
from fesem_jax.core.sums import add_up
from fesem_jax.utils.errors import UserError


class Clients(NamedTuple):
  """The clients to map over."""

  ids: jax.Array  # [S] int32 positions in the data
  work: jax.Array  # [S] int32 work of each client
  own: Any = None  # tree of [S, ...], the data of each client
  # Arrays [S, ...] to overwrite, a prefix of the tree of results; None for new arrays.
  # Allocating memory takes longer than filling it.
  into: Any = None
  # [S] int32 below `ChunkSize.num_groups`; a chunk contains clients of at most two
  # groups, one after the other. None for a single group.
  group: jax.Array | None = None


class Chunk(NamedTuple):
  """Clients that are processed side by side."""

  ids: jax.Array  # [C] int32 positions in the data; M for an empty slot
  own: Any  # tree of [C, ...], the data of each client
  # Tree of [C, ...], the values that the results overwrite; None if `body` does not
  # read them.
  into: Any


# (`Chunk`, shared arrays, sums) -> results, a tree of [C, ...], and the sums including
# the chunk.
Body = Callable[[Chunk, Any, Any], tuple[Any, Any]]

# (Rows [c, ...] of the body's values of each client, its common values, sums) ->
# results [c, ...], and the sums including these clients.
Finish = Callable[[Any, Any, Any], tuple[Any, Any]]


def map_clients(
  body: Body,
  clients: Clients,
  shared: Any,
  size: ChunkSize,
  *,
  empty: int,
  mesh: Mesh,
  sums: Any = None,
  finish: Finish | None = None,
  replaces: bool = True,
) -> tuple[Any, Any]:
  """Runs `body` on clients, split over devices, in chunks of decreasing work.

  Clients of similar work share a chunk. Since a chunk takes as long as its longest
  client, this wastes little time. Rows of an `offloading.Offloaded` are fetched for one
  chunk at a time; accelerators prefetch those of the next chunk.

  Args:
    body: processes a chunk. In an empty slot it may return any result, but must not
      change the sums.
    clients: S clients, a multiple of the number of devices.
    shared: tree of arrays that are replicated on every device. Pass all arrays of the
      round that `body` needs: it cannot close over arrays of a mesh.
    size: of chunks.
    empty: M, the position of an empty slot.
    mesh: the devices.
    sums: arrays to add to, all zeros.
    finish: computes results that would take too much memory for C clients at once;
      `body` then returns the values of each client, a tree of [C, ...], and common
      values, in place of results. None if `body` returns the results.
    replaces: whether `body` reads the old values of `Clients.into` in host memory.

  Returns:
    Results, a tree of [S, ...] split over the mesh, and the sums of all clients.

  Raises:
    UserError: if S is not a multiple of the number of devices.
  """
  if clients.ids.shape[0] % mesh.size:
    raise UserError(
      f'A cohort of {clients.ids.shape[0]} clients cannot be divided among '
      f'{mesh.size} devices; make it by `cohort_of`, which adds empty places.'
    )
  ahead = offloading.reads_ahead(mesh)

  def on_device(clients: Clients, shared: Any, sums: Any) -> tuple[Any, Any]:
    def of_chunk(slots: jax.Array, own: Any, old: Any, sums: Any) -> tuple[Any, Any]:
      # A slot beyond the end is empty; its `own` belongs to another client.
      ids = clients.ids.at[slots].get(mode='fill', fill_value=empty)
      return body(Chunk(ids, own, old), shared, sums)

    chunks = in_chunks(clients.work, clients.group, size)
    rows = _ClientRows(clients.own, clients.into, replaces, chunks.size)
    return _over_chunks(of_chunk, chunks, rows, sums, finish, ahead)

  clients = clients._replace(ids=jnp.asarray(clients.ids))
  return sharding.per_device(on_device, mesh, 1)(clients, shared, sums)


def _is_leaf(x: Any) -> bool:
  return x is None or offloading.is_offloaded(x)


class _ClientRows(NamedTuple):
  """Reads and writes of the rows of a chunk's clients, also in host memory."""

  own: Any  # see `Clients`
  into: Any  # see `Clients`
  replaces: bool  # see `map_clients`
  size: int  # C

  def _old(self, results: Any) -> Any:
    """The results that a chunk reads before it overwrites them."""

    def given(into: Any, result: Any) -> Any:
      unread = offloading.is_offloaded(into) and not self.replaces
      return None if into is None or unread else result

    return jax.tree.map(given, self.into, results, is_leaf=_is_leaf)

  def fetch(self, results: Any, slots: jax.Array) -> Any:
    """Rows of a chunk that are in host memory."""
    return offloading.fetch((self.own, self._old(results)), slots)

  def read(self, results: Any, slots: jax.Array, fetched: Any) -> tuple[Any, Any]:
    """Rows of a chunk: the clients' own, and those that their results overwrite."""

    def rows(whole: jax.Array, slots: jax.Array) -> jax.Array:
      if self.size == 1:
        return jax.lax.dynamic_slice_in_dim(whole, slots[0], 1)
      return whole.at[slots].get(mode='clip')

    own = offloading.with_rest(self.own, fetched[0], slots, tree.take)
    return own, offloading.with_rest(self._old(results), fetched[1], slots, rows)

  def filled(self, shapes: Any, num_clients: int) -> Any:
    """`into`, with zeros [S, ...] in place of None."""

    def new(s: Any) -> jax.Array:
      return jnp.zeros((num_clients, *s.shape[1:]), s.dtype)

    def fill(old: Any, shapes: Any) -> Any:
      return jax.tree.map(new, shapes) if old is None else old

    return jax.tree.map(fill, self.into, shapes, is_leaf=_is_leaf)


def _write(results: Any, slots: jax.Array, rows: Any) -> Any:
  """The results with the rows of some clients replaced."""

  def write(whole: Any, rows: Any) -> Any:
    if offloading.is_offloaded(whole):
      return whole.put(slots, rows)
    if len(slots) == 1:  # A slice is updated in place; a scatter would loop.
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, slots[0], 0)
    return whole.at[slots].set(rows, mode='drop')

  return jax.tree.map(write, results, rows, is_leaf=offloading.is_offloaded)


def _over_chunks(
  of_chunk: Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]],
  chunks: Chunks,
  rows: _ClientRows,
  sums: Any,
  finish: Finish | None,
  ahead: bool,
) -> tuple[Any, Any]:
  """The loop over the chunks of a device: results [S, ...], and the sums."""
  # Traced once, for shapes and for the loop.
  of_chunk = jax.jit(of_chunk, inline=True)
  finish = finish and jax.jit(finish, inline=True)
  part_size = chunks.size if finish is None else chunks.part

  def results_of(found: Any, sums: Any, i: jax.Array | int = 0) -> tuple[Any, Any]:
    if finish is None:
      return found, sums
    own, of_all = found
    return finish(_slice(own, i, part_size), of_all, sums)

  def run(i: jax.Array, carry: Any) -> Any:
    (results, fetched), sums = carry
    slots, following = chunks.slots(i), None
    if ahead:
      following = rows.fetch(results, chunks.slots(i + 1))
    else:
      fetched = rows.fetch(results, slots)
    found, sums = of_chunk(slots, *rows.read(results, slots, fetched), sums)

    def part(i: jax.Array | int, carry: Any) -> Any:
      results, sums = carry
      own = _slice(slots, i, part_size)
      new, sums = results_of(found, sums, i)
      return _write(results, own, new), sums

    exist = slots < chunks.num_clients
    results, sums = _add_parts(part, results, sums, chunks.size, part_size, exist)
    return (results, following), sums

  def first_results(slots: jax.Array, sums: Any) -> Any:
    into = rows.into
    read = rows.read(into, slots, rows.fetch(into, slots))
    return results_of(*of_chunk(slots, *read, sums))[0]

  shapes = jax.eval_shape(first_results, chunks.slots(0), sums)
  results = rows.filled(shapes, chunks.num_clients)
  first = rows.fetch(results, chunks.slots(0)) if ahead else None
  (results, _), sums = add_up(chunks.number, run, (results, first), sums, chunks.most)
  return results, sums


def _add_parts(
  part: Callable[[Any, tuple[Any, Any]], tuple[Any, Any]],
  results: Any,
  sums: Any,
  count: int,
  size: int,
  exist: jax.Array,
) -> tuple[Any, Any]:
  """`sums.add_up` over the parts of `size` of a chunk's `count` clients.

  `exist` [count] bool is False for empty slots; parts behind the last client are
  skipped.
  """
  if size == count:
    return part(0, (results, sums))
  filled = jnp.where(exist, jnp.arange(1, count + 1), 0).max()
  return add_up((filled + size - 1) // size, part, results, sums, count // size)


def _slice(clients: Any, i: jax.Array | int, size: int) -> Any:
  """The i-th `size` rows of a tree of [C, ...]."""

  def rows(x: jax.Array) -> jax.Array:
    if len(x) == size:
      return x
    return jax.lax.dynamic_slice_in_dim(x, i * size, size)

  return jax.tree.map(rows, clients)


def side_by_side(fn: Callable[..., Any], size: int) -> Callable[..., Any]:
  """`jax.vmap(fn)` over `size` clients, which share the axis name `batching.SIDE`.

  The arrays of a single client have no batch axis, which would turn convolutions into
  grouped ones and keep the loop from overwriting parameters in place.
  """
  if size > 1:
    return jax.vmap(fn, axis_name=SIDE)

  def one(*args: Any) -> Any:
    args = tree.unstack(args, 0)
    return jax.vmap(lambda: fn(*args), axis_name=SIDE, axis_size=1)()

  return one
