"""Chunks of clients, and their order."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class ChunkSize(NamedTuple):
  """The number of clients in a chunk; it changes results by rounding only."""

  clients: int  # C, clients side by side
  part: int = 1  # c, the most clients per call of `finish`; parts have equal sizes
  num_groups: int = 1  # an upper bound of the number of groups of clients


class Chunks(NamedTuple):
  """Clients of a device in chunks."""

  order: jax.Array  # [most * C] int32 positions of clients; S for an empty slot
  number: jax.Array | int  # of chunks, [] int32 if it depends on the groups
  most: int  # upper bound of the number of chunks
  size: int  # C
  part: int  # clients of a part, a divisor of C
  num_clients: int  # S

  def slots(self, i: jax.Array | int) -> jax.Array:
    """[C] slots of the i-th chunk."""
    return jax.lax.dynamic_slice_in_dim(self.order, i * self.size, self.size)


def in_chunks(work: jax.Array, group: jax.Array | None, size: ChunkSize) -> Chunks:
  """Clients by `group` and decreasing `work`, both [S] int32, in chunks.

  A `group` of None puts all clients into one group.
  """
  count = work.shape[0]
  most = -(-count // max(1, size.clients))
  width = -(-count // most)  # As few empty slots as possible.
  part = size_of_parts(width, size.part)
  if group is None or width == 1:
    order = jnp.argsort(-work).astype(jnp.int32)
    padding = jnp.full(most * width - count, count, jnp.int32)
    order = jnp.concatenate([order, padding])
    return Chunks(order, most, most, width, part, count)
  groups = size.num_groups
  # A third group starts a new chunk, at most (groups - 1) // 2 times.
  most = -(-(count + (groups - 1) // 2 * (width - 1)) // width)
  order, number = _by_group(work, group, groups, width, most)
  return Chunks(order, number, most, width, part, count)


def size_of_parts(count: int, most: int) -> int:
  """The largest divisor of `count` up to `most`, so that all parts have equal sizes."""
  return max(c for c in range(1, min(count, max(1, most)) + 1) if count % c == 0)


def _by_group(
  work: jax.Array, group: jax.Array, num_groups: int, chunk: int, most: int
) -> tuple[jax.Array, jax.Array]:
  """Clients in chunks of at most two groups, by decreasing work.

  With `work` [S], `group` [S] int32 and `chunk` C, the result is [most * C] int32
  clients, S for an empty slot, and the number of chunks [] int32, at most `most`.
  """
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
