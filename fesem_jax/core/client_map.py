"""Maps over the clients of a cohort, split over devices and processed in chunks."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding, tree
from fesem_jax.core.batching import SIDE
from fesem_jax.core.offloading import is_offloaded
from fesem_jax.core.platforms import per_device
from fesem_jax.core.sums import add_up
from fesem_jax.utils.errors import check

# How many times as fast small models train side by side as one after the other.
_SPEEDUP = 1.5

# (shared arrays, positions [C] int32 with M for an empty slot, rows of clients, rows
# of `into`, sums) -> results, a tree of [C, ...], and the sums including the chunk.
Body = Callable[[Any, jax.Array, Any, Any, Any], tuple[Any, Any]]


def map_clients(
  body: Body,
  ids: jax.Array,
  work: jax.Array,
  client_rows: Any,
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
  finish: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
  part: int = 1,
) -> tuple[Any, Any]:
  """Runs `body` on clients, split over devices, in one chunk or by decreasing work.

  Args:
    body: processes a chunk; it must not add empty slots to the sums.
    ids: [S] int32 positions in the data; S is a multiple of the number of devices.
    work: [S] int32 work of each client; similar ones share a chunk.
    client_rows: tree of [S, ...] of each client; rows in host memory are fetched.
    shared: replicated arrays that `body` needs, as it cannot close over them.
    per_chunk: C, clients side by side, at most.
    empty: M, the position of an empty slot.
    mesh: the devices.
    sums: arrays to add to, all zeros.
    into: arrays [S, ...] to overwrite, a prefix of the results, or None.
    replaces: whether `body` reads those of `into` that are in host memory.
    group: [S] int32 below `num_groups`; a chunk has clients of two groups at most.
    num_groups: an upper bound of the number of groups.
    finish: (rows [c, ...] and common values of `body`, sums) -> results and sums, of at
      most `part` clients at once.
    part: see `finish`.

  Returns results, a tree of [S, ...] split over the mesh, and the sums of all clients;
  raises `UserError` if S is not a multiple of the number of devices.
  """
  divides = ids.shape[0] % mesh.size == 0
  check(divides, f'cohort: {ids.shape[0]} places on {mesh.size} devices; use cohort_of')
  finish = finish and jax.jit(finish, inline=True)  # Traced once.
  shards = sharding.shards_per_device(mesh, ids.shape[0])
  ahead = reads_ahead(mesh) and not shards
  on_device = _over_chunks(
    body, finish, per_chunk, part, num_groups, empty, replaces, ahead, shards
  )
  clients = jnp.asarray(ids), work, client_rows, into, group
  return per_device(on_device, mesh, 1, shards > 0)(clients, shared, sums)


def _over_chunks(
  body: Body,
  finish: Any,
  per_chunk: int,
  part: int,
  num_groups: int,
  empty: int,
  replaces: bool,
  ahead: bool,
  shards: int,
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
  def on_device(clients: Any, shared: Any, sums: Any) -> tuple[Any, Any]:
    ids, work, client_rows, into, group = clients
    most = per_chunk if finish is None else min(per_chunk, part)
    rows = jax.tree.leaves((client_rows, into), is_leaf=is_offloaded)
    in_host = any(map(is_offloaded, rows))
    if len(ids) <= most and group is None and not (shards or in_host):
      results, sums = body(shared, ids, client_rows, into, sums)  # In the given order.
      return (results, sums) if finish is None else finish(*results, sums)
    order, number = _in_shards(shards, work, per_chunk, group, num_groups)
    most, width = order.shape
    # The largest divisor up to `part`, so that all parts have equal sizes.
    parts = 1 if finish is None else -(-width // max(1, part))
    while width % parts:
      parts += 1
    size = width // parts
    slots_of = functools.partial(jax.lax.dynamic_index_in_dim, order, keepdims=False)

    def stacks(results: Any) -> Any:
      """Arrays [S, ...] whose rows a chunk reads: its own, and those to overwrite."""

      def old(into: Any, result: Any) -> Any:
        unread = is_offloaded(into) and not replaces
        return None if into is None or unread else result

      return client_rows, jax.tree.map(old, into, results, is_leaf=_is_leaf)

    def run(i: jax.Array, carry: Any) -> Any:
      (results, fetched), sums = carry
      read, slots, following = stacks(results), slots_of(i), None
      if ahead:
        following = _fetched(read, slots_of(i + 1))
      rows = _rows(read, slots, fetched)
      # A slot beyond the end is empty; its rows belong to another client.
      places = ids.at[slots].get(mode='fill', fill_value=empty)
      trained, sums = run_chunk(places, *rows, sums)

      def write(i: jax.Array | int, carry: Any) -> Any:
        (results, sums), new = carry, trained
        if finish is not None:
          outputs, common = trained
          outputs = outputs if parts == 1 else _slice(outputs, i, size)
          new, sums = finish(outputs, common, sums)
        at = slots if parts == 1 else _slice(slots, i, size)
        return _written(results, at, new), sums

      if parts == 1:
        results, sums = write(0, (results, sums))
      else:  # Parts behind the last client are skipped.
        filled = jnp.where(slots < ids.shape[0], jnp.arange(1, width + 1), 0).max()
        filled = (filled + size - 1) // size
        results, sums = add_up(filled, write, results, sums, parts)
      return (results, following), sums

    # Traced once, for shapes and for the loop.
    run_chunk = jax.jit(functools.partial(body, shared), inline=True)
    slots = slots_of(0)
    rows = jax.eval_shape(functools.partial(_rows, slots=slots), stacks(into))
    shapes, _ = run_chunk.eval_shape(slots, *rows, sums)
    if finish is not None:
      outputs, common = shapes
      if parts > 1:
        outputs = jax.eval_shape(functools.partial(_slice, i=0, size=size), outputs)
      shapes, _ = finish.eval_shape(outputs, common, sums)

    def filled(old: Any, shapes: Any) -> Any:
      def new(s: Any) -> jax.Array:
        return jnp.zeros((ids.shape[0], *s.shape[1:]), s.dtype)

      return jax.tree.map(new, shapes) if old is None else old

    results = jax.tree.map(filled, into, shapes, is_leaf=_is_leaf)
    first = _fetched(stacks(results), slots) if ahead else None
    if not shards:
      (results, _), sums = add_up(number, run, (results, first), sums, most)
      return results, sums

    def run_shard(carry: Any, shard: tuple[jax.Array, jax.Array]) -> Any:
      i, number = shard
      return add_up(number, lambda j, c: run(i + j, c), carry, sums, most // shards)

    firsts = jnp.arange(0, most, most // shards)
    (results, _), sums = jax.lax.scan(run_shard, (results, first), (firsts, number))
    return results, sums

  return on_device


def _in_shards(
  shards: int, work: jax.Array, most: int, group: jax.Array | None, num_groups: int
) -> tuple[jax.Array, Any]:
  """`in_chunks`, shard by shard, with the number of chunks [E] of each shard."""
  if not shards:
    return in_chunks(work, most, group, num_groups)
  size = work.shape[0] // shards
  split = jax.tree.map(lambda x: x.reshape(shards, size), (work, group))
  order, numbers = jax.vmap(lambda w, g: in_chunks(w, most, g, num_groups))(*split)
  firsts = size * jnp.arange(shards)[:, None, None]
  order = jnp.where(order < size, order + firsts, work.shape[0])
  return order.reshape(-1, order.shape[-1]), numbers


def in_chunks(
  work: jax.Array, most: int, group: jax.Array | None = None, num_groups: int = 1
) -> tuple[jax.Array, jax.Array | int]:
  """Positions [X, C] int32 of clients in chunks, S for none, and X or fewer chunks."""
  count = work.shape[0]
  chunks = -(-count // max(1, most))
  width = -(-count // chunks)  # As few empty slots as possible.
  if group is None or width == 1:
    order = jnp.argsort(-work).astype(jnp.int32)
    padding = jnp.full(chunks * width - count, count, jnp.int32)
    return jnp.concatenate([order, padding]).reshape(chunks, width), chunks
  # A third group starts a new chunk, at most (num_groups - 1) // 2 times.
  chunks = -(-(count + (num_groups - 1) // 2 * (width - 1)) // width)
  order, number = _by_group(work, group, num_groups, width, chunks)
  return order.reshape(chunks, width), number


def _by_group(
  work: jax.Array, group: jax.Array, num_groups: int, chunk: int, most: int
) -> tuple[jax.Array, jax.Array]:
  """Clients [most * C] int32 in chunks of two groups, and the number of chunks."""
  order = jnp.lexsort((-work, group)).astype(jnp.int32)
  sizes = jnp.bincount(group, length=num_groups)

  def place(
    carry: tuple[jax.Array, jax.Array], size: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    # The next free slot, and the number of groups already in its chunk.
    free, groups = carry
    full = (groups == 2) & (size > 0)
    first = jnp.where(full, -(-free // chunk) * chunk, free)
    free = first + size
    groups = jnp.where(free // chunk > first // chunk, 0, jnp.where(full, 0, groups))
    return (free, jnp.where(free % chunk == 0, 0, groups + (size > 0))), first

  (free, _), firsts = jax.lax.scan(place, (jnp.int32(0), jnp.int32(0)), sizes)
  # The offset from the sorted order to the slots in the chunks, for each group.
  shift = firsts - (jnp.cumsum(sizes) - sizes)
  places = jnp.arange(work.shape[0]) + shift[group[order]]
  empty = jnp.full(most * chunk, work.shape[0], jnp.int32)
  return empty.at[places].set(order), (free + chunk - 1) // chunk


def reads_ahead(mesh: Mesh) -> bool:
  """True if the next chunk's rows are prefetched: a CPU would copy the stack."""
  return mesh.devices.flat[0].platform != 'cpu'


def _is_leaf(x: Any) -> bool:
  return x is None or is_offloaded(x)


def _fetched(stacks: Any, slots: jax.Array) -> Any:
  """Rows [C, ...] of the stacks in host memory; None for all others."""

  def rows(x: Any) -> Any:
    return x.take(slots) if is_offloaded(x) else None

  return jax.tree.map(rows, stacks, is_leaf=is_offloaded)


def _rows(stacks: Any, slots: jax.Array, fetched: Any = None) -> Any:
  """Rows [C, ...] of stacks [S, ...]; `fetched` has those in host memory."""

  def rows(x: Any, in_host: Any = None) -> Any:
    if is_offloaded(x):
      return x.take(slots) if fetched is None else in_host
    if len(slots) == 1:
      return jax.lax.dynamic_slice_in_dim(x, slots[0], 1)
    return tree.take(x, slots)

  trees = (stacks,) if fetched is None else (stacks, fetched)
  return jax.tree.map(rows, *trees, is_leaf=is_offloaded)


def _written(results: Any, slots: jax.Array, rows: Any) -> Any:
  def write(whole: Any, rows: Any) -> Any:
    if is_offloaded(whole):
      return whole.put(slots, rows)
    if len(slots) == 1:  # A slice is updated in place; a scatter would loop.
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, slots[0], 0)
    return tree.put(whole, slots, rows)

  return jax.tree.map(write, results, rows, is_leaf=is_offloaded)


def _slice(clients: Any, i: jax.Array | int, size: int) -> Any:
  def rows(x: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, i * size, size)

  return jax.tree.map(rows, clients)


def side_by_side(fn: Callable[..., Any], size: int) -> Callable[..., Any]:
  """`jax.vmap(fn)` over `size` clients; of one, without a batch axis to pay for."""
  if size > 1:
    return jax.vmap(fn, axis_name=SIDE)

  def one(*args: Any) -> Any:
    args = tree.unstack(args, 0)
    return jax.vmap(lambda: fn(*args), axis_name=SIDE, axis_size=1)()

  return one


def by_work(fn: Callable[..., Any], work: jax.Array, args: Any, unequal: bool) -> Any:
  """Results of `fn(work, *args)` of clients; `unequal` ones may train in turn."""
  size = work.shape[0]
  if size == 1 or not unequal:
    return side_by_side(fn, size)(work, *args)
  order = jnp.argsort(-work)
  ordered = work[order].astype(jnp.float32)
  # The time where 0, 1, ... clients with most work train in turn.
  time = jnp.cumsum(ordered) - ordered + ordered * max(1.0, size / _SPEEDUP)
  count = time.argmin()
  in_turn = jnp.zeros(size, bool).at[order].set(jnp.arange(size) < count)
  results = side_by_side(fn, size)(jnp.where(in_turn, 0, work), *args)
  one = side_by_side(fn, 1)

  def train(i: jax.Array, results: Any) -> Any:
    rows = _slice((work, *args), order[i], 1)
    return _written(results, order[i][None], one(*rows))

  return jax.lax.fori_loop(0, count, train, results)
