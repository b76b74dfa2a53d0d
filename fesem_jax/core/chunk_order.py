"""Chunks of clients, and their order."""

import jax
import jax.numpy as jnp


def in_chunks(
  work: jax.Array, most: int, group: jax.Array | None = None, num_groups: int = 1
) -> tuple[jax.Array, jax.Array | int]:
  """Clients by `group` and decreasing `work`, both [S] int32, in chunks of `most`.

  A `group` of None puts all clients into one group; else `num_groups` is an upper bound
  of their number, and a chunk has clients of two at most. Returns the positions of
  clients [X, C] int32, S for an empty slot, in X chunks at most, and the number of
  chunks, [] int32 if it depends on the groups.
  """
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
