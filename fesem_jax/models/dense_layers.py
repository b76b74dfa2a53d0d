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
  return x @ kernel, (x, kernel)


def _bwd(residuals, dy):
  x, kernel = residuals
  dkernel = platforms.choose(_sum_of_outer, lambda x, dy: x.T @ dy, x, dy)
  return dy @ kernel.T, dkernel


def _sum_of_outer(x, dy):
  if x.shape[0] > _FEW:
    return (x[:, :, None] * dy[:, None, :]).sum(axis=0)
  return sum(map(jnp.outer, x, dy))


_small_product.defvjp(_fwd, _bwd)


def dot_general(
  x: jax.Array, kernel: jax.Array, *args: Any, **kwargs: Any
) -> jax.Array:
  """`jax.lax.dot_general` for `flax.linen.Dense(dot_general=...)`.

  x [B, I] and kernel [I, O] give [B, O], equal to `x @ kernel`; gradients too, up to
  rounding. Further arguments are those of `jax.lax.dot_general`.
  """
  if x.ndim == 2 and kernel.size <= SMALL:
    return _small_product(x, kernel)
  return jax.lax.dot_general(x, kernel, *args, **kwargs)
