"""The examples of each local step of a client.

Only indices are padded. Batches depend on (seed, round, client id, epoch) only, and are
computed inside the compiled round.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.ranges import Count, Index

# Up to this many bytes, the examples of clients side by side are first read in order,
# so that later random reads hit the cache instead of memory.
READ_AT_ONCE = 2**20

# Up to this many numbers, the orders of a client's examples in all of its epochs are
# drawn before its first step.
MOST_ORDERS = 2**16

# The axis of clients side by side; functions of one client are mapped over it.
SIDE = 'side_by_side'


class Schedule(NamedTuple):
  """The amount of local training of a client in a round.

  Attributes:
    batch_size: B, examples of a step; 0 uses all examples of the client.
    epochs: E passes over the client's examples; the last batch of a pass contains the
      remaining examples, and its loss is their mean.
    steps: if positive, the number of steps, instead of `epochs` passes.
  """

  batch_size: Index = 0
  epochs: Count = 1
  steps: Index = 0


def batch_width(schedule: Schedule, max_examples: int) -> int:
  """Static size of a batch, including padding."""
  return min(schedule.batch_size, max_examples) or max_examples


def batches_per_epoch(sizes: jax.Array, width: int) -> jax.Array:
  """[S] int32: ceil(n_i / B)."""
  return (sizes + width - 1) // width


def most_steps(schedule: Schedule, max_examples: int) -> int:
  """The maximum number of local steps of a client."""
  batches = -(-max_examples // batch_width(schedule, max_examples))
  return schedule.steps or batches * schedule.epochs


def num_steps(
  schedule: Schedule,
  sizes: jax.Array,
  max_examples: int,
  epochs: jax.Array | None = None,
) -> jax.Array:
  """[S] int32 local steps of each client; 0 for clients without examples.

  `sizes` [S] int32 counts the examples of each client. `epochs` [S] int32 takes the
  place of `schedule.epochs`, for stragglers.
  """
  if schedule.steps:
    return jnp.where(sizes > 0, schedule.steps, 0).astype(jnp.int32)
  width = batch_width(schedule, max_examples)
  passes = schedule.epochs if epochs is None else epochs
  return (batches_per_epoch(sizes, width) * passes).astype(jnp.int32)


def shuffle(key: jax.Array, size: jax.Array, max_examples: int) -> jax.Array:
  """A random order of 0..size-1 in the first `size` slots of [N_max] int32.

  Sorts 24 random bits of each slot; ties keep the order of the slots.
  """
  slots = jnp.arange(max_examples, dtype=jnp.uint32)
  draw = jax.random.bits(key, (max_examples,), jnp.uint32) >> 8
  beyond = jnp.uint32(0xFFFFFFFF)  # Sorts slots without an example to the end.
  if max_examples > 256:
    return jnp.argsort(jnp.where(slots < size, draw, beyond)).astype(jnp.int32)
  # Draw and slot in one number: sorting these is four times faster than an argsort.
  packed = jnp.sort(jnp.where(slots < size, draw << 8 | slots, beyond))
  return (packed & 0xFF).astype(jnp.int32)


def batch_rows(
  order: jax.Array, step: jax.Array, size: jax.Array, width: int
) -> tuple[jax.Array, jax.Array]:
  """Rows within one client of batch `step` of an epoch: [B] int32, weights [B] float32.

  `order` [N_max] is from `shuffle`, `step` [] int32 is in 0..batches_per_epoch-1,
  `size` [] int32 is the number of examples of the client, and `width` is B.
  """
  first = step * width
  slots = first + jnp.arange(width, dtype=jnp.int32)
  inside = slots < size
  # Padding repeats the first example of the batch with weight 0, so that rows of other
  # clients are never read.
  rows = order.at[jnp.where(inside, slots, first)].get(mode='clip')
  return rows, inside.astype(jnp.float32)


def gather(
  data: FederatedData, client: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Examples `rows` [B] of one client, scaled: x [B, ...] float32, y [B] int32.

  Raises:
    AssertionError: if data are split by client, outside of `per_device`.
  """
  x, y = _stored(data, client, rows)
  return _scaled(data, x), y


def _stored(
  data: FederatedData, client: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """`gather`, but with x as stored in `data`."""
  first = jnp.asarray(data.offsets).at[client].get(mode='clip')
  if data.shard_rows is not None:
    assert data.shard_rows.shape[0] == 1, 'A device reads its own rows only.'
    first = first - data.shard_rows[0, 0]
  rows = first + rows
  x, y = jnp.asarray(data.x), jnp.asarray(data.y)
  return x.at[rows].get(mode='clip'), y.at[rows].get(mode='clip')


def _scaled(data: FederatedData, x: jax.Array) -> jax.Array:
  if data.flat_from is not None:
    x = x[..., : math.prod(data.flat_from)].reshape(*x.shape[:-1], *data.flat_from)
  return x.astype(jnp.float32) * data.scale


# x [B, ...], y [B, ...], weights [B] of 0 or 1, and factors [B] of the losses or None.
Batch = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]


def batches_of_client(
  schedule: Schedule,
  data: FederatedData,
  client: jax.Array,
  size: jax.Array,
  key: jax.Array,
  factors: jax.Array | None = None,
) -> tuple[jax.Array, Callable[[jax.Array, jax.Array], tuple[jax.Array, Batch]]]:
  """The batches of one client, to be mapped over the axis `SIDE`.

  Args:
    schedule: the local work.
    data: training split.
    client: [] int32 position in `data`.
    size: [] int32 examples of the client.
    key: of the client in this round.
    factors: [N_max] float32 factors of the examples' losses; None if all are 1.

  Returns:
    The first order of the examples, and a function (step [] int32, order) -> the order
    and the batch of this step. Clients side by side count their steps together.
  """
  most = data.max_examples
  width, in_order = batch_width(schedule, most), jnp.arange(most, dtype=jnp.int32)
  held = None
  if _reads_at_once(schedule, data, jax.lax.axis_size(SIDE)):
    held = _stored(data, client, in_order)

  def batch(order, place):
    rows, weights = batch_rows(order, place, size, width)
    if held is None:
      x, y = _stored(data, client, rows)
    else:
      x, y = held[0].at[rows].get(mode='clip'), held[1].at[rows].get(mode='clip')
    return _scaled(data, x), y, weights, tree.take(factors, rows)

  # With one batch per epoch the order is immaterial: gather once, never shuffle.
  if width == most:
    whole = batch(in_order, jnp.int32(0))
    return jnp.int32(0), lambda step, order: (order, whole)

  def of_epoch(epoch):
    return shuffle(jax.random.fold_in(key, epoch), size, most)

  per_epoch = jnp.maximum(batches_per_epoch(size, width), 1)
  if not schedule.steps and schedule.epochs * most <= MOST_ORDERS:
    orders = jax.vmap(of_epoch)(jnp.arange(schedule.epochs))

    def known(step, order):
      epoch, place = jax.lax.div(step, per_epoch), jax.lax.rem(step, per_epoch)
      return order, batch(orders[epoch], place)

    return jnp.int32(0), known

  def drawn(step, order):
    epoch, place = jax.lax.div(step, per_epoch), jax.lax.rem(step, per_epoch)
    anew = jax.lax.pmax((place == 0).astype(jnp.int32), SIDE) > 0
    order = jax.lax.cond(anew, of_epoch, lambda _: order, epoch)
    return order, batch(order, place)

  return in_order, drawn


def _reads_at_once(schedule: Schedule, data: FederatedData, side_by_side: int) -> bool:
  """True if all examples of clients side by side are read before the first step."""
  width = batch_width(schedule, data.max_examples)
  if side_by_side == 1 or width == data.max_examples:
    return False
  seen = width * most_steps(schedule, data.max_examples) >= data.max_examples
  bytes_each = data.x.dtype.itemsize * math.prod(data.x.shape[1:])
  all_bytes = side_by_side * data.max_examples * bytes_each
  return seen and all_bytes <= READ_AT_ONCE
