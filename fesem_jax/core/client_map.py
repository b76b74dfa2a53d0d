"""Maps over the clients of a cohort, split over devices and processed in chunks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.batching import SIDE
from fesem_jax.core.chunk_order import in_chunks, size_of_parts
from fesem_jax.core.sums import add_up
from fesem_jax.utils.errors import UserError

# (positions in the data [C] int32, M for an empty slot; rows [C, ...] of `own`; rows of
# `into`; shared arrays; sums) -> results, a tree of [C, ...], and the sums including
# the chunk.
Body = Callable[[jax.Array, Any, Any, Any, Any], tuple[Any, Any]]

# (Rows [c, ...] of the body's values of each client, its common values, sums) ->
# results [c, ...], and the sums including these clients.
Finish = Callable[[Any, Any, Any], tuple[Any, Any]]


def map_clients(
  body: Body,
  ids: jax.Array,
  work: jax.Array,
  own: Any,
  shared: Any,
  *,
  per_chunk: int,
  empty: int,
  mesh: Mesh,
  sums: Any = None,
  into: Any = None,
  replaces: bool = True,
  group: jax.Array | None = None,
  num_groups: int = 1,
  finish: Finish | None = None,
  part: int = 1,
) -> tuple[Any, Any]:
  """Runs `body` on clients, split over devices, in chunks of decreasing work.

  Clients of similar work share a chunk. Since a chunk takes as long as its longest
  client, this wastes little time. Rows of an `offloading.Offloaded` are fetched for one
  chunk at a time; accelerators prefetch those of the next chunk.

  Args:
    body: processes a chunk. In an empty slot it may return any result, but must not
      change the sums.
    ids: [S] int32 positions in the data; S is a multiple of the number of devices.
    work: [S] int32 work of each client.
    own: tree of [S, ...], the data of each client.
    shared: tree of arrays that are replicated on every device. Pass all arrays of the
      round that `body` needs: it cannot close over arrays of a mesh.
    per_chunk: C, clients side by side, at most.
    empty: M, the position of an empty slot.
    mesh: the devices.
    sums: arrays to add to, all zeros.
    into: arrays [S, ...] to overwrite, a prefix of the tree of results; None for new
      arrays. Allocating memory takes longer than filling it.
    replaces: whether `body` reads those of `into` that are in host memory.
    group: [S] int32 below `num_groups`; a chunk contains clients of at most two groups,
      one after the other. None for a single group.
    num_groups: an upper bound of the number of groups.
    finish: computes results that would take too much memory for C clients at once;
      `body` then returns the values of each client, a tree of [C, ...], and common
      values, in place of results. None if `body` returns the results.
    part: the most clients per call of `finish`; parts have equal sizes.

  Returns:
    Results, a tree of [S, ...] split over the mesh, and the sums of all clients.

  Raises:
    UserError: if S is not a multiple of the number of devices.
  """
  if ids.shape[0] % mesh.size:
    raise UserError(
      f'A cohort of {ids.shape[0]} clients cannot be divided among '
      f'{mesh.size} devices; make it by `cohort_of`, which adds empty places.'
    )
  on_device = _over_chunks(
    body, finish, per_chunk, part, num_groups, empty, replaces,
    offloading.reads_ahead(mesh),
  )  # fmt: skip
  clients = jnp.asarray(ids), work, own, into, group
  return sharding.per_device(on_device, mesh, 1)(clients, shared, sums)


def _over_chunks(
  body: Body,
  finish: Finish | None,
  per_chunk: int,
  part: int,
  num_groups: int,
  empty: int,
  replaces: bool,
  ahead: bool,
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
  """The loop over the chunks of a device's clients; see `map_clients`.

  Returns a function ((ids, work, own, into, group), shared, sums) -> results, sums;
  `ahead` says whether it fetches the rows of the next chunk from host memory.
  """

  def on_device(clients: Any, shared: Any, sums: Any) -> tuple[Any, Any]:
    ids, work, own, into, group = clients
    order, number = in_chunks(work, per_chunk, group, num_groups)
    most, width = order.shape
    size = width if finish is None else size_of_parts(width, part)

    def of_chunk(slots: jax.Array, own: Any, old: Any, sums: Any) -> tuple[Any, Any]:
      # A slot beyond the end is empty; its `own` belongs to another client.
      places = ids.at[slots].get(mode='fill', fill_value=empty)
      return body(places, own, old, shared, sums)

    def of_part(found: Any, sums: Any, i: jax.Array | int) -> tuple[Any, Any]:
      if finish is None:
        return found, sums
      own, common = found
      return finish(_slice(own, i, size), common, sums)

    def stacks(results: Any) -> Any:
      """Arrays [S, ...] whose rows a chunk reads: its own, and those to overwrite."""

      def old(into: Any, result: Any) -> Any:
        unread = offloading.is_offloaded(into) and not replaces
        return None if into is None or unread else result

      return own, jax.tree.map(old, into, results, is_leaf=_is_leaf)

    def run(i: jax.Array, carry: Any) -> Any:
      (results, fetched), sums = carry
      read, slots, following = stacks(results), _slots(order, i), None
      if ahead:
        following = _fetched(read, _slots(order, i + 1))
      else:
        fetched = _fetched(read, slots)
      found, sums = traced(slots, *_rows(read, slots, fetched), sums)

      def write(i: jax.Array | int, carry: Any) -> Any:
        results, sums = carry
        new, sums = of_part(found, sums, i)
        return _written(results, _slice(slots, i, size), new), sums

      if size == width:
        results, sums = write(0, (results, sums))
      else:  # Parts behind the last client are skipped.
        filled = jnp.where(slots < ids.shape[0], jnp.arange(1, width + 1), 0).max()
        parts = (filled + size - 1) // size
        results, sums = add_up(parts, write, results, sums, width // size)
      return (results, following), sums

    def first_rows(stacks: Any) -> Any:
      return _rows(stacks, slots, _fetched(stacks, slots))

    traced = jax.jit(of_chunk, inline=True)  # Once, for shapes and for the loop.
    slots = _slots(order, 0)
    found, _ = traced.eval_shape(slots, *jax.eval_shape(first_rows, stacks(into)), sums)
    shapes, _ = jax.eval_shape(lambda found: of_part(found, sums, 0), found)

    def filled(old: Any, shapes: Any) -> Any:
      def new(s: Any) -> jax.Array:
        return jnp.zeros((ids.shape[0], *s.shape[1:]), s.dtype)

      return jax.tree.map(new, shapes) if old is None else old

    results = jax.tree.map(filled, into, shapes, is_leaf=_is_leaf)
    first = _fetched(stacks(results), slots) if ahead else None
    (results, _), sums = add_up(number, run, (results, first), sums, most)
    return results, sums

  finish = finish and jax.jit(finish, inline=True)
  return on_device


def _is_leaf(x: Any) -> bool:
  return x is None or offloading.is_offloaded(x)


def _slots(order: jax.Array, i: jax.Array | int) -> jax.Array:
  """[C] slots of the i-th chunk."""
  return jax.lax.dynamic_index_in_dim(order, i, keepdims=False)


def _fetched(stacks: Any, slots: jax.Array) -> Any:
  """Rows [C, ...] of the stacks in host memory; None for all others."""

  def rows(x: Any) -> Any:
    return x.take(slots) if offloading.is_offloaded(x) else None

  return jax.tree.map(rows, stacks, is_leaf=offloading.is_offloaded)


def _rows(stacks: Any, slots: jax.Array, fetched: Any) -> Any:
  """Rows [C, ...] of stacks [S, ...]; `fetched` has those in host memory."""

  def rows(x: Any, found: Any) -> Any:
    if offloading.is_offloaded(x):
      return found
    if len(slots) == 1:
      return jax.lax.dynamic_slice_in_dim(x, slots[0], 1)
    return jnp.asarray(x).at[slots].get(mode='clip')

  return jax.tree.map(rows, stacks, fetched, is_leaf=offloading.is_offloaded)


def _written(results: Any, slots: jax.Array, rows: Any) -> Any:
  """The results with the rows of some clients replaced."""

  def write(whole: Any, rows: Any) -> Any:
    if offloading.is_offloaded(whole):
      return whole.put(slots, rows)
    if len(slots) == 1:  # A slice is updated in place; a scatter would loop.
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, slots[0], 0)
    return whole.at[slots].set(rows, mode='drop')

  return jax.tree.map(write, results, rows, is_leaf=offloading.is_offloaded)


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
