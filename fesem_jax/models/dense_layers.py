"""The product of a dense layer, whose kernel gradient stays fast over clients."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import platforms

# What Flax calls the matrix of a dense layer.
KERNEL = 'kernel'

# Up to this many entries, XLA's CPU compiler takes longer to start a matrix
# product than to sum over the batch in a loop that it can fuse.
SMALL = 4096
# With so few examples the sum is written out, which XLA then fuses into the update.
_FEW = 16


@jax.custom_vjp
def _small_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return x @ kernel


def _fwd(x, kernel):
  # The inputs of a first layer are data and need no gradient.
  saved = kernel.value if x.perturbed else None
  return x.value @ kernel.value, (x.value, saved)


def _bwd(residuals, dy):
  x, kernel = residuals
  first = kernel is None

  def on_cpu(x, dy):
    if x.shape[0] > _FEW:
      return (x[:, :, None] * dy[:, None, :]).sum(axis=0)
    narrow, count = first and 8 <= dy.shape[1] < 16, x.shape[0]
    once, start = _computed_once(dy) if narrow else (dy, 0)
    columns, rows = jnp.split(x.T, count, axis=1), jnp.split(once, count)
    return sum(map(jnp.multiply, columns, rows), start)

  dkernel = platforms.choose(on_cpu, lambda x, dy: x.T @ dy, x, dy)
  return None if first else dy @ kernel.T, dkernel


def _computed_once(dy):
  """The finite numbers, as a product that XLA computes once; NaN [1, O] for others."""
  finite = jnp.where(jnp.isfinite(dy), dy, 0)
  columns = jnp.ones((1, dy.shape[0]), dy.dtype) @ (0 * dy)
  return finite @ jnp.eye(dy.shape[1], dtype=dy.dtype), columns


_small_product.defvjp(_fwd, _bwd, symbolic_zeros=True)


def product(x: jax.Array, kernel: jax.Array, **kwargs: Any) -> jax.Array:
  """[..., O] of x [..., I] and a kernel [I, O], rows along one axis: fast on a CPU."""
  rows = x.reshape(-1, x.shape[-1])
  y = jax.lax.dot_general(rows, kernel, (((1,), (0,)), ((), ())), **kwargs)
  return y.reshape(*x.shape[:-1], kernel.shape[-1])


def dot_general(
  x: jax.Array, kernel: jax.Array, dimensions: Any, **kwargs: Any
) -> jax.Array:
  """`jax.lax.dot_general` for `flax.linen.Dense`: `x @ kernel` [..., O]."""
  del dimensions  # Those of a dense layer.
  if x.ndim == 2 and kernel.size <= SMALL:
    return _small_product(x, kernel)
  return product(x, kernel, **kwargs)
