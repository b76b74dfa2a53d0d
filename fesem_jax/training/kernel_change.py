"""Changes of a dense kernel as rows of inputs and gradients, and products with them.

SGD from W_0 makes W_t = W_0 - sum_{s < t} c_s x_s^T d_s, with a layer's inputs x_s [B,
I] at step s, gradients d_s [B, O] of its outputs and the learning rate c_s, which a
penalty shrinks at each later step. With the rows x_s and d_s in X and D,

  x W_t = x W_0 - ((x X^T) * c) D    and    d W_t^T = d W_0^T - ((d D^T) * c) X.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

# A dense layer: its keys in the tree of parameters.
Path = tuple[str, ...]
# A step's inputs [B, I] and output gradients [B, O].
Rows = tuple[jax.Array, jax.Array]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Kernel:
  """A dense layer whose kernel clients of a center start from."""

  path: Path
  rows: int  # of one step, R
  steps: int  # the most that a client takes, T
  block: int  # steps whose rows are one block, b; the same for all kernels


class Block(NamedTuple):
  """Change of a kernel by some local steps: -(shares * inputs)^T gradients."""

  inputs: jax.Array  # [b R, I] float32 the layer's inputs, R rows for each of b steps
  gradients: jax.Array  # [b R, O] float32 gradients of the layer's outputs
  shares: jax.Array  # [b R] float32 c; 0 in rows that are not filled yet


class KernelChange(NamedTuple):
  """Change of a kernel by training so far."""

  # The one being filled, those that are full, and last those that are empty yet.
  blocks: tuple[Block, ...]
  # [] bool: the client started from the second of two centers; None if all have one.
  from_other: jax.Array | None = None


class KernelStart(NamedTuple):
  """Start of a kernel of clients side by side."""

  kernel: jax.Array  # [I, O] W_0
  # [I, O] W_0 of the clients that are `from_other`; None if all have one center.
  other: jax.Array | None = None
  two: jax.Array | None = None  # [] bool whether there are any of these

  def times(
    self, x: jax.Array, from_other: jax.Array | None, turned: bool = False
  ) -> jax.Array:
    """The product x W_0, or x W_0^T if `turned`; two where there are two centers."""

    def by(kernel: jax.Array, x: jax.Array) -> jax.Array:
      return x @ (kernel.T if turned else kernel)

    if self.other is None or self.two is None or from_other is None:
      return by(self.kernel, x)
    other = self.other

    def multiply_both(x: jax.Array) -> jax.Array:
      first_product = by(self.kernel, jnp.where(from_other, 0.0, x))
      return first_product + by(other, jnp.where(from_other, x, 0.0))

    return jax.lax.cond(self.two, multiply_both, lambda x: by(self.kernel, x), x)

  def largest(self) -> jax.Array:
    largest = jnp.abs(self.kernel).max()
    if self.other is None:
      return largest
    return jnp.maximum(largest, jnp.abs(self.other).max())


@jax.custom_vjp
def product(
  x: jax.Array, start: KernelStart, change: KernelChange, full: jax.Array, rows: Rows
) -> jax.Array:
  """The product x W_t [R, O]; its gradient by `rows` is what a step adds to it."""
  total = _sum_blocks(x, change, full, lambda block: block)
  return start.times(x, change.from_other) - total


def _sum_blocks(x, change, full, sides):
  """((x A^T) * shares) B, added up over the blocks, whose `sides` give A and B."""

  def times(block, x):
    a, b, shares = sides(block)
    return ((x @ a.T) * shares[None]) @ b

  first, *rest = change.blocks
  total = times(first, x)
  for i, block in enumerate(rest, 1):
    none = jnp.zeros_like(total)
    total += jax.lax.cond(i <= full, times, lambda *_, none=none: none, block, x)
  return total


def _forward(x, start, change, full, rows):
  return product(x, start, change, full, rows), (x, start, change, full)


def _backward(residuals, dy):
  x, start, change, full = residuals
  total = _sum_blocks(dy, change, full, lambda b: (b.gradients, b.inputs, b.shares))
  dx = start.times(dy, change.from_other, turned=True) - total
  return dx, None, None, None, (x, dy)


product.defvjp(_forward, _backward)


def last_block_first(change: KernelChange) -> KernelChange:
  *rest, last = change.blocks
  return change._replace(blocks=(last, *rest))
