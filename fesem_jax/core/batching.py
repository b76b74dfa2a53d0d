"""The examples of each local step, by seed, round, client id and epoch alone."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.ranges import Count, Index

# Up to this many bytes, the examples of clients side by side are first read in order,
# so that later random reads hit the cache instead of memory.
READ_AT_ONCE = 2**20

# Clients are unequal if one has this many times as many batches as the mean of them.
_UNEQUAL = 8

# Rounds of the shuffle: shares of pairs of places then differ by at most 0.2 %.
_ROUNDS = 16
_HALF = np.uint32(2**31)

# The axis of clients side by side; functions of one client are mapped over it.
SIDE = 'side_by_side'


class Schedule(NamedTuple):
  """The amount of local training of a client in a round.

  Attributes:
    batch_size: B, examples of a step; 0 uses all examples of the client.
    epochs: E passes over the client's examples; a smaller last batch averages over its
      examples.
    steps: if positive, the number of steps, instead of `epochs` passes.
  """

  batch_size: Index = 0
  epochs: Count = 1
  steps: Index = 0


def batch_width(schedule: Schedule, max_examples: int) -> int:
  """B, at most the examples of the largest client."""
  return min(schedule.batch_size, max_examples) or max_examples


def batches_per_epoch(sizes: jax.Array, width: int) -> jax.Array:
  """[S] int32: ceil(n_i / B)."""
  return (sizes + width - 1) // width


def most_steps(schedule: Schedule, max_examples: int) -> int:
  """The most local steps of a client."""
  batches = -(-max_examples // batch_width(schedule, max_examples))
  return schedule.steps or batches * schedule.epochs


def are_unequal(schedule: Schedule, data: FederatedData) -> bool:
  """True if a client may take many more local steps than most others."""
  mean = max(1, data.y.shape[0] // data.num_clients)
  width = batch_width(schedule, data.max_examples)
  mean_batches, largest_batches = -(-mean // width), -(-data.max_examples // width)
  return not schedule.steps and largest_batches > _UNEQUAL * mean_batches


def num_steps(
  schedule: Schedule,
  sizes: jax.Array,
  max_examples: int,
  epochs: jax.Array | None = None,
) -> jax.Array:
  """[S] int32 local steps of clients; `epochs` [S] override the schedule's."""
  if schedule.steps:
    return jnp.where(sizes > 0, schedule.steps, 0).astype(jnp.int32)
  width = batch_width(schedule, max_examples)
  passes = schedule.epochs if epochs is None else epochs
  return (batches_per_epoch(sizes, width) * passes).astype(jnp.int32)


def random_rows(
  words: jax.Array, epoch: jax.Array, places: jax.Array, size: jax.Array
) -> jax.Array:
  """[B] int32 rows at `places` [B] of the order by a client's `words` [2] and epoch."""
  # The swap-or-not shuffle (Hoang et al., CRYPTO 2012), with bits of a random linear
  # function (Dietzfelbinger 1996). Numbers below 0 wrap around, so that a minimum takes
  # them modulo the size.
  size = jnp.maximum(size, 1).astype(jnp.uint32)
  counters = jnp.arange(_ROUNDS + 1, dtype=jnp.uint32)
  counters += jnp.asarray(epoch).astype(jnp.uint32) * (_ROUNDS + 1)
  keys = _mixed(_mixed(counters + words[0]) ^ words[1])
  # Otherwise they are computed again for each place.
  sums, keys = jax.lax.optimization_barrier((jax.lax.rem(keys, size), keys))
  # Of shape [1], which takes fewer operations than scalars.
  *totals, first = jax.lax.split(sums, [1] * (_ROUNDS + 1))
  factors = itertools.pairwise(jax.lax.split(keys, [1] * (_ROUNDS + 1)))
  rows, size = places.astype(jnp.uint32) + first, size[None]
  rows = jnp.minimum(rows, rows - size)
  for total, (factor, summand) in zip(totals, factors, strict=True):
    rows = _swapped(rows, size, total, factor, summand)
  return rows.astype(jnp.int32)


@functools.partial(jax.jit, inline=True)  # Traced once.
def _swapped(
  rows: jax.Array,
  size: jax.Array,
  total: jax.Array,
  factor: jax.Array,
  summand: jax.Array,
) -> jax.Array:
  partners = total - rows
  partners = jnp.minimum(partners, partners + size)
  swap = jnp.maximum(rows, partners) * factor + summand >= _HALF
  return jnp.where(swap, partners, rows)


def _mixed(x: jax.Array) -> jax.Array:
  """uint32 hashes of uint32: a permutation that flips each bit half of the time."""
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):  # lowbias32, C. Wellons
    x = (x ^ (x >> shift)) * jnp.uint32(factor)
  return x ^ (x >> 16)


def batch_places(
  step: jax.Array, size: jax.Array, width: int
) -> tuple[jax.Array, jax.Array]:
  """Places [B] int32 of batch `step` of an epoch, and weights [B] float32."""
  first = step * width
  places = first + jnp.arange(width, dtype=jnp.int32)
  exists = places < size
  # Padding repeats the first example of the batch with weight 0, so that rows of other
  # clients are never read.
  padding = jnp.where(first < size, first, 0)
  return jnp.where(exists, places, padding), exists.astype(jnp.float32)


def gather(
  data: FederatedData, client: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Examples `rows` [B] of one client, scaled: x [B, ...] float32, y [B] int32."""
  x, y = _stored(data, client, rows)
  return _scaled(data, x), y


def _stored(
  data: FederatedData, client: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  first = tree.take(data.offsets, client)
  if data.shard_rows is not None:
    assert data.shard_rows.shape[0] == 1, 'A device reads its own rows only.'
    first = first - data.shard_rows[0, 0]
  return tree.take((data.x, data.y), first + rows)


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
) -> Callable[[jax.Array], Batch]:
  """A function step [] int32 -> batch of the client at a position, mapped over `SIDE`.

  `key` is the client's in this round; `factors` [N_max] multiply its losses.
  """
  most = data.max_examples
  width, read = batch_width(schedule, most), functools.partial(_stored, data, client)
  side = jax.lax.axis_size(SIDE)
  if reads_at_once := _reads_at_once(schedule, data, side):
    examples = read(jnp.arange(most, dtype=jnp.int32))
    read = functools.partial(tree.take, examples)

  def batch(rows: jax.Array, weights: jax.Array) -> Batch:
    x, y = read(rows)
    return _scaled(data, x), y, weights, tree.take(factors, rows)

  # With one batch per epoch the order is immaterial: gather once, never shuffle.
  if width == most:
    whole = batch(*batch_places(jnp.int32(0), size, width))
    return lambda step: whole
  words = jax.random.bits(key, (2,), jnp.uint32)
  per_epoch = jnp.maximum(batches_per_epoch(size, width), 1)

  def order(step: jax.Array) -> tuple[jax.Array, jax.Array]:
    epoch, place = jax.lax.div(step, per_epoch), jax.lax.rem(step, per_epoch)
    places, weights = batch_places(place, size, width)
    return random_rows(words, epoch, places, size), weights

  # In a step, XLA computes rows for x and again for y.
  steps = most_steps(schedule, most)
  if not reads_at_once or side * steps * width > READ_AT_ONCE:
    return lambda step: batch(*order(step))
  orders = jax.vmap(order)(jnp.arange(steps, dtype=jnp.int32))
  return lambda step: batch(*tree.take(orders, step))


def _reads_at_once(schedule: Schedule, data: FederatedData, side_by_side: int) -> bool:
  """True if clients side by side read all examples before the first step."""
  width = batch_width(schedule, data.max_examples)
  if side_by_side == 1 or width == data.max_examples:
    return False
  reads_all = width * most_steps(schedule, data.max_examples) >= data.max_examples
  bytes_each = data.x.dtype.itemsize * math.prod(data.x.shape[1:])
  all_bytes = side_by_side * data.max_examples * bytes_each
  return reads_all and all_bytes <= READ_AT_ONCE
