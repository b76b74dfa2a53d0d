"""Work on the clients of a cohort: split over devices, then done chunk by chunk."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.sums import add_up


class Chunk(NamedTuple):
  """Clients that are worked on side by side.

  Attributes:
    ids: [C] int32 positions in the data; M in an empty place.
    own: tree of [C, ...], what belongs to each of them.
    into: tree of [C, ...], what their results overwrite; None where they only fill it.
  """

  ids: jax.Array
  own: Any
  into: Any


def map_clients(
  body: Callable[[Chunk, Any, Any], tuple[Any, Any]],
  ids: jax.Array,
  work: jax.Array,
  own: Any,
  shared: Any,
  *,
  empty: int,
  mesh: Mesh,
  clients_per_chunk: int,
  sums: Any = None,
  into: Any = None,
  replaces: bool = True,
  group: jax.Array | None = None,
  num_groups: int = 1,
  finish: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
  clients_per_part: int = 1,
) -> tuple[Any, Any]:
  """Runs `body` on the clients of a cohort, split over devices, chunk by chunk.

  What is `offloading.Offloaded` of `own` and `into` comes to the device a chunk at a
  time; on accelerators, the next chunk's while one is worked on.

  Args:
    body: (`Chunk`, shared, sums) -> results, a tree of [C, ...], and the sums with
      those of the chunk added. In an empty place it may give any result, but adds
      nothing to the sums.
    ids: [S] int32 positions in the data.
    work: [S] int32 how long each client takes.
    own: tree of [S, ...], what belongs to each client.
    shared: tree of arrays that are whole on every device. What `body` needs of a round
      comes through it: arrays of a mesh cannot be closed over.
    empty: M, the position of an empty place.
    mesh: devices; S is a multiple of their count.
    clients_per_chunk: C; see `map_chunks`.
    sums: arrays to add to, all zeros.
    into: arrays [S, ...] to overwrite; see `map_chunks`.
    replaces: see `map_chunks`.
    group: see `map_chunks`.
    num_groups: see `map_chunks`.
    finish: see `map_chunks`.
    clients_per_part: see `map_chunks`.

  Returns:
    Results, a tree of [S, ...] split over the mesh, and the sums of all clients.
  """

  def on_device(ids, work, group, own, into, shared, sums):
    def chunk(slots, own, old, sums):
      # A slot beyond the end is an empty place; what it owns is another client's.
      chunk_ids = ids.at[slots].get(mode='fill', fill_value=empty)
      return body(Chunk(chunk_ids, own, old), shared, sums)

    return map_chunks(
      chunk,
      work,
      clients_per_chunk,
      sums,
      into,
      group,
      num_groups,
      own=own,
      replaces=replaces,
      reads_ahead=offloading.reads_ahead(mesh),
      finish=finish,
      clients_per_part=clients_per_part,
    )

  return sharding.per_device(on_device, mesh, 5)(
    jnp.asarray(ids), work, group, own, into, shared, sums
  )


def map_chunks(
  body: Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]],
  work: jax.Array,
  clients_per_chunk: int,
  sums: Any = None,
  into: Any = None,
  group: jax.Array | None = None,
  num_groups: int = 1,
  *,
  own: Any = None,
  replaces: bool = True,
  reads_ahead: bool = False,
  finish: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
  clients_per_part: int = 1,
) -> tuple[Any, Any]:
  """Runs `body` on chunks of clients in order of decreasing work.

  Clients of like work share a chunk, so a chunk that lasts as long as its
  longest client wastes little.

  Args:
    body: (slots [C] int32, what `own` and `into` hold there, sums) -> tree of [C, ...]
      and sums, to which it adds; a slot S is an empty place.
    work: [S] int32 how long each client takes.
    clients_per_chunk: C; it does not affect the result beyond rounding.
    sums: arrays to add to.
    into: arrays [S, ...] to overwrite, a prefix of the tree of results, None for new
      ones. Fresh memory costs more time than filling it.
    group: [S] int32 in 0..num_groups-1; a chunk has clients of one group, or of two,
      one after the other. None if all are of one.
    num_groups: how many there are, or more.
    own: tree of [S, ...], what belongs to each client.
    replaces: whether `body` looks at what `into` holds in the host's memory.
    reads_ahead: whether what is in the host's memory comes a chunk ahead.
    finish: makes results that would take too much memory for C clients at once: (c rows
      of what `body` found for each client, what it found for all, sums) -> results
      [c, ...] and sums, to which it adds. `body` then returns both findings, the first
      a tree of [C, ...], and sums. None if `body` returns the results.
    clients_per_part: c, or fewer, so that parts are of one size.

  Returns:
    Tree of [S, ...] in the order of `work`, and what the last chunk left.
  """
  body = jax.jit(body, inline=True)  # Traced once: for its shapes, and in the loop.
  num_clients = work.shape[0]
  most = -(-num_clients // max(1, clients_per_chunk))
  chunk = -(-num_clients // most)  # As few empty places as can be.
  size = chunk
  if finish is not None:
    finish, size = jax.jit(finish, inline=True), _size_of_parts(chunk, clients_per_part)
  num_chunks: jax.Array | int = most
  if group is None or chunk == 1:
    order = jnp.argsort(-work).astype(jnp.int32)
    padding = jnp.full(most * chunk - num_clients, num_clients, jnp.int32)
    order = jnp.concatenate([order, padding])
  else:
    # A third group begins a chunk of its own: at most so often.
    most = -(-(num_clients + (num_groups - 1) // 2 * (chunk - 1)) // chunk)
    order, num_chunks = _by_group(work, group, num_groups, chunk, most)

  def write(whole: Any, slots: jax.Array, rows: Any) -> Any:
    if offloading.is_offloaded(whole):
      return whole.put(slots, rows)
    if len(slots) == 1:  # A slice is written in place; a scatter would loop.
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, slots[0], 0)
    return whole.at[slots].set(rows, mode='drop')

  def read(whole: jax.Array, slots: jax.Array) -> jax.Array:
    if chunk == 1:
      return jax.lax.dynamic_slice_in_dim(whole, slots[0], 1)
    return whole.at[slots].get(mode='clip')

  offloaded = offloading.is_offloaded

  def leaf(x):
    return x is None or offloaded(x)

  def slots_of(i: jax.Array | int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(order, i * chunk, chunk)

  def old(out: Any) -> Any:
    def given(i, o):
      return None if i is None or (offloaded(i) and not replaces) else o

    return jax.tree.map(given, into, out, is_leaf=leaf)

  def fetch(out: Any, slots: jax.Array) -> Any:
    return offloading.fetch((own, old(out)), slots)

  def one_chunk(slots: jax.Array, out: Any, fetched: Any, sums: Any) -> Any:
    own_rows = offloading.with_rest(own, fetched[0], slots, tree.take)
    old_rows = offloading.with_rest(old(out), fetched[1], slots, read)
    return body(slots, own_rows, old_rows, sums)

  def results_of(found: Any, sums: Any, i: jax.Array | int = 0) -> Any:
    if finish is None:
      return found, sums
    own, of_all = found
    return finish(_slice(own, i, size), of_all, sums)

  def run(i: jax.Array, carry: Any) -> Any:
    (out, fetched), sums = carry
    slots, following = slots_of(i), None
    if reads_ahead:
      following = fetch(out, slots_of(i + 1))
    else:
      fetched = fetch(out, slots)
    found, sums = one_chunk(slots, out, fetched, sums)

    def part(i: jax.Array | int, carry: Any) -> Any:
      out, sums = carry
      own = _slice(slots, i, size)
      rows, sums = results_of(found, sums, i)
      out = jax.tree.map(lambda o, r: write(o, own, r), out, rows, is_leaf=offloaded)
      return out, sums

    exist = slots < num_clients
    out, sums = _add_parts(part, out, sums, chunk, size, exist)
    return (out, following), sums

  def first_results(slots: jax.Array, sums: Any) -> Any:
    return results_of(*one_chunk(slots, into, fetch(into, slots), sums))[0]

  shapes = jax.eval_shape(first_results, slots_of(0), sums)

  def new(s):
    return jnp.zeros((num_clients, *s.shape[1:]), s.dtype)

  def fill(old, s):
    return jax.tree.map(new, s) if old is None else old

  out = jax.tree.map(fill, into, shapes, is_leaf=leaf)
  first = fetch(out, slots_of(0)) if reads_ahead else None
  (out, _), sums = add_up(num_chunks, run, (out, first), sums, most)
  return out, sums


def in_parts(
  body: Callable[[Any, Any], tuple[Any, Any]],
  clients: Any,
  clients_per_part: int,
  sums: Any = None,
  exist: jax.Array | None = None,
) -> tuple[Any, Any]:
  """Runs `body` on a few of a chunk's clients at a time, for what needs more memory.

  Args:
    body: (tree of [c, ...], sums) -> tree of [c, ...] and sums, to which it adds.
    clients: tree of [C, ...].
    clients_per_part: see `map_chunks`.
    sums: arrays to add to.
    exist: [C] bool, False in empty places; None if there are none. Parts behind the
      last client are left out: their results are zeros.

  Returns:
    Tree of [C, ...], and the sums.
  """
  count = jax.tree.leaves(clients)[0].shape[0]
  size = _size_of_parts(count, clients_per_part)
  if size == count:
    return body(clients, sums)
  body = jax.jit(body, inline=True)  # As in `map_chunks`.

  def part(i: jax.Array, carry: Any) -> Any:
    out, sums = carry
    rows, sums = body(_slice(clients, i, size), sums)

    def write(whole: jax.Array, rows: jax.Array) -> jax.Array:
      return jax.lax.dynamic_update_slice_in_dim(whole, rows, i * size, 0)

    return jax.tree.map(write, out, rows), sums

  shapes, _ = jax.eval_shape(body, _slice(clients, 0, size), sums)
  out = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), shapes)
  return _add_parts(part, out, sums, count, size, exist)


def _add_parts(
  part: Callable[[Any, tuple[Any, Any]], tuple[Any, Any]],
  results: Any,
  sums: Any,
  count: int,
  size: int,
  exist: jax.Array | None,
) -> tuple[Any, Any]:
  """`sums.add_up` over the parts of `size` of a chunk's `count` clients."""
  if size == count:
    return part(0, (results, sums))
  parts: jax.Array | int = count // size
  if exist is not None:
    filled = jnp.where(exist, jnp.arange(1, count + 1), 0).max()
    parts = (filled + size - 1) // size
  return add_up(parts, part, results, sums, count // size)


def _size_of_parts(count: int, most: int) -> int:
  """Clients of a part, of `most` at the most: as many in each, so none counts twice."""
  return max(c for c in range(1, min(count, max(1, most)) + 1) if count % c == 0)


def _slice(clients: Any, i: jax.Array | int, size: int) -> Any:
  """The i-th `size` rows of a tree of [C, ...]."""

  def rows(x: jax.Array) -> jax.Array:
    if len(x) == size:
      return x
    return jax.lax.dynamic_slice_in_dim(x, i * size, size)

  return jax.tree.map(rows, clients)


def _by_group(
  work: jax.Array, group: jax.Array, num_groups: int, chunk: int, most: int
) -> tuple[jax.Array, jax.Array]:
  """Clients in chunks of one group or two, by decreasing work.

  Args:
    work: [S].
    group: [S] int32.
    num_groups: how many groups there are.
    chunk: C.
    most: chunks that there can be.

  Returns:
    [most * C] int32 clients, S in an empty place; and the number of chunks [] int32.
  """
  order = jnp.lexsort((-work, group)).astype(jnp.int32)
  sizes = jnp.bincount(group, length=num_groups)

  def place(
    carry: tuple[jax.Array, jax.Array], size: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    # The next free place, and how many groups its chunk has already.
    free, groups = carry
    full = (groups == 2) & (size > 0)
    first = jnp.where(full, -(-free // chunk) * chunk, free)
    free = first + size
    groups = jnp.where(free // chunk > first // chunk, 0, jnp.where(full, 0, groups))
    return (free, jnp.where(free % chunk == 0, 0, groups + (size > 0))), first

  (free, _), firsts = jax.lax.scan(place, (jnp.int32(0), jnp.int32(0)), sizes)
  # From its place among all clients to that in the chunks, group by group.
  shift = firsts - (jnp.cumsum(sizes) - sizes)
  places = jnp.arange(work.shape[0]) + shift[group[order]]
  empty = jnp.full(most * chunk, work.shape[0], jnp.int32)
  return empty.at[places].set(order), (free + chunk - 1) // chunk


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
