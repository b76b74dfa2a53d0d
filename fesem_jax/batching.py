"""Which examples a client sees at each local step.

Only indices are ever padded. A plan is computed where it is used, inside the
compiled round, from (seed, round, client id, epoch) alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.base import FederatedData


class Schedule(NamedTuple):
  """How much local work a client does in a round.

  Attributes:
    batch_size: B; 0 takes all examples of the client at every step.
    epochs: E passes over the client's examples; the last batch of a pass holds
      what is left and weighs what it holds.
    steps: if positive, this many steps instead of `epochs` passes.
  """

  batch_size: int = 0
  epochs: int = 1
  steps: int = 0


def batch_width(schedule: Schedule, max_examples: int) -> int:
  """Static number of slots in a batch."""
  return min(schedule.batch_size, max_examples) or max_examples


def is_full_batch(schedule: Schedule, max_examples: int) -> bool:
  """Whether every client's examples always fit one batch."""
  return batch_width(schedule, max_examples) == max_examples


def batches_per_epoch(sizes: jax.Array, width: int) -> jax.Array:
  """[S] int32: ceil(n_i / B)."""
  return (sizes + width - 1) // width


def most_steps(schedule: Schedule, max_examples: int) -> int:
  """The most local steps that any client takes."""
  batches = -(-max_examples // batch_width(schedule, max_examples))
  return schedule.steps or batches * schedule.epochs


def num_steps(
  schedule: Schedule,
  sizes: jax.Array,
  max_examples: int,
  epochs: jax.Array | None = None,
) -> jax.Array:
  """Local steps of each client, [S] int32; clients without examples take none.

  Args:
    schedule: the local work.
    sizes: [S] int32 examples of each client.
    max_examples: see `FederatedData`.
    epochs: [S] int32 in place of `schedule.epochs`, for stragglers.
  """
  if schedule.steps:
    return jnp.where(sizes > 0, schedule.steps, 0).astype(jnp.int32)
  width = batch_width(schedule, max_examples)
  passes = schedule.epochs if epochs is None else epochs
  return (batches_per_epoch(sizes, width) * passes).astype(jnp.int32)


def shuffle(key: jax.Array, size: jax.Array, max_examples: int) -> jax.Array:
  """A random order of 0..size-1 in the first `size` slots of [N_max] int32.

  By 24 random bits of each slot; of equal ones, the earlier slot comes first.
  """
  slots = jnp.arange(max_examples, dtype=jnp.uint32)
  draw = jax.random.bits(key, (max_examples,), jnp.uint32) >> 8
  beyond = jnp.uint32(0xFFFFFFFF)  # Slots without an example come last.
  if max_examples > 256:
    return jnp.argsort(jnp.where(slots < size, draw, beyond)).astype(jnp.int32)
  # Draw and slot in one number: sorting that is four times faster than an argsort.
  both = jnp.sort(jnp.where(slots < size, draw << 8 | slots, beyond))
  return (both & 0xFF).astype(jnp.int32)


def batch_rows(
  order: jax.Array, step: jax.Array, size: jax.Array, width: int
) -> tuple[jax.Array, jax.Array]:
  """Rows within one client of batch `step` of an epoch: [B] int32, weights [B] float32.

  Args:
    order: [N_max] from `shuffle`.
    step: [] int32 in 0..batches_per_epoch-1.
    size: [] int32 examples of the client.
    width: B.
  """
  first = step * width
  slots = first + jnp.arange(width, dtype=jnp.int32)
  inside = slots < size
  # What is left of a batch repeats its first example, with weight 0: rows of other
  # clients are never read.
  rows = order.at[jnp.where(inside, slots, first)].get(mode='clip')
  return rows, inside.astype(jnp.float32)


def gather(
  data: FederatedData, client: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Examples `rows` [B] of one client, scaled: x [B, ...] float32, y [B] int32."""
  rows = jnp.asarray(data.offsets).at[client].get(mode='clip') + rows
  x = jnp.asarray(data.x).at[rows].get(mode='clip')
  return x.astype(jnp.float32) * data.scale, jnp.asarray(data.y).at[rows].get(
    mode='clip'
  )
