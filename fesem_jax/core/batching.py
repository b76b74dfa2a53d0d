"""The examples of each local step of a client.

Only indices are padded. Batches depend on (seed, round, client id, epoch) only, and are
computed inside the compiled round.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.federated_data import FederatedData

# Up to this many bytes, the examples of clients side by side are first read in order,
# so that later random reads hit the cache instead of memory.
READ_AT_ONCE = 2**20


class Schedule(NamedTuple):
  """The amount of local training of a client in a round.

  Attributes:
    batch_size: B; 0 uses all examples of the client in every step.
    epochs: E passes over the client's examples; the last batch of a pass contains the
      remaining examples, and its loss is their mean.
    steps: if positive, the number of steps, instead of `epochs` passes.
  """

  batch_size: int = 0
  epochs: int = 1
  steps: int = 0


def batch_width(schedule: Schedule, max_examples: int) -> int:
  """Static size of a batch, including padding."""
  return min(schedule.batch_size, max_examples) or max_examples


def is_full_batch(schedule: Schedule, max_examples: int) -> bool:
  """Whether the examples of every client fit into one batch."""
  return batch_width(schedule, max_examples) == max_examples


def batches_per_epoch(sizes: jax.Array, width: int) -> jax.Array:
  """[S] int32: ceil(n_i / B)."""
  return (sizes + width - 1) // width


def batches_of(schedule: Schedule, data: FederatedData, ids: jax.Array) -> jax.Array:
  """[S] int32: batches per epoch of clients `ids`."""
  width = batch_width(schedule, data.max_examples)
  return batches_per_epoch(data.sizes(jnp.asarray(ids)), width)


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
  both = jnp.sort(jnp.where(slots < size, draw << 8 | slots, beyond))
  return (both & 0xFF).astype(jnp.int32)


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
    AssertionError: if data are split by client, outside of `sharding.per_device`.
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


def _of_held(
  data: FederatedData, held: tuple[jax.Array, jax.Array], rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """`gather` from the examples that `_stored` has read."""
  x, y = (array.at[rows].get(mode='clip') for array in held)
  return _scaled(data, x), y


def _scaled(data: FederatedData, x: jax.Array) -> jax.Array:
  if data.flat_from is not None:
    x = x[..., : math.prod(data.flat_from)].reshape(*x.shape[:-1], *data.flat_from)
  return x.astype(jnp.float32) * data.scale


# x [C, B, ...], y [C, B], weights [C, B] of 0 or 1, and factors [C, B] of the losses or
# None.
Batch = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]


def step_by_step(
  schedule: Schedule,
  data: FederatedData,
  ids: jax.Array,
  keys: jax.Array,
  each: Callable[..., Any],
  factors: jax.Array | None = None,
) -> tuple[jax.Array, Callable[[jax.Array, jax.Array], tuple[jax.Array, Batch]]]:
  """The batches of C clients side by side, or of one client without the axis C.

  Args:
    schedule: the local work.
    data: training split.
    ids: [C] int32 positions in `data`.
    keys: [C] keys of the clients in this round.
    each: maps a function over clients, like `jax.vmap`.
    factors: [C, N_max] float32 factors of the examples' losses; None if all are 1.

  Returns:
    Initial orders [C, N_max] int32 of the examples, and a function
    (step [] int32, orders) -> the orders and the batch of this step.
  """
  sizes = data.sizes(ids)
  width = batch_width(schedule, data.max_examples)
  per_epoch = jnp.maximum(batches_per_epoch(sizes, width), 1)
  in_order = jnp.broadcast_to(
    jnp.arange(data.max_examples, dtype=jnp.int32), (*ids.shape, data.max_examples)
  )

  clients: Any = ids
  read: Callable[..., Any] = functools.partial(gather, data)
  if _reads_at_once(schedule, data, ids):
    clients = each(functools.partial(_stored, data))(ids, in_order)
    read = functools.partial(_of_held, data)

  def batch(client, order, step, size, factors):
    rows, weights = batch_rows(order, step, size, width)
    return *read(client, rows), weights, tree.take(factors, rows)

  # With one batch per epoch the order is immaterial: gather once, never shuffle.
  if is_full_batch(schedule, data.max_examples):
    whole = each(batch)(clients, in_order, jnp.zeros_like(sizes), sizes, factors)
    return in_order, lambda step, orders: (orders, whole)

  def new_orders(epoch):
    epoch_keys = each(jax.random.fold_in)(keys, epoch)
    return each(shuffle, (0, 0, None))(epoch_keys, sizes, data.max_examples)

  def at(step, orders):
    epoch, position = jnp.divmod(step, per_epoch)
    orders = jax.lax.cond((position == 0).any(), new_orders, lambda _: orders, epoch)
    return orders, each(batch)(clients, orders, position, sizes, factors)

  return in_order, at


def _reads_at_once(schedule: Schedule, data: FederatedData, ids: jax.Array) -> bool:
  """Whether all examples of clients side by side are read before the first step."""
  if ids.size == 1 or is_full_batch(schedule, data.max_examples):
    return False
  width = batch_width(schedule, data.max_examples)
  seen = width * most_steps(schedule, data.max_examples) >= data.max_examples
  bytes_each = data.x.dtype.itemsize * math.prod(data.x.shape[1:])
  all_bytes = ids.size * data.max_examples * bytes_each
  return seen and all_bytes <= READ_AT_ONCE
