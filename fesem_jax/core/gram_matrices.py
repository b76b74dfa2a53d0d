"""Inner products between the models of a stack, a block of parameters at a time."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding, tree
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Params

_HIGHEST = jax.lax.Precision.HIGHEST

# Approximate number of values in a block of all rows.
_BLOCK = 2**24

# With at least _MANY rows, the matrix has _PARTS by _PARTS parts, of which those below
# the diagonal are copied: 9 / 16 of all products are computed.
_MANY, _PARTS = 512, 8


def inner_products(
  stack: Params,
  mesh: Mesh | None = None,
  *,
  rows: jax.Array | None = None,
  origin: jax.Array | None = None,
) -> jax.Array:
  """[n, n] float32 inner products of `rows` [n] int32 (None: all) of a stack [S, ...].

  The row at `origin` [] int32 is subtracted from all; a `mesh` splits them.
  """
  devices = 1 if mesh is None else mesh.size

  def on_device(stack: Params, rows: Any, origin: Any) -> tuple[None, jax.Array]:
    products = [_layer_gram(x, rows, origin, devices) for x in jax.tree.leaves(stack)]
    return None, functools.reduce(jnp.add, products)

  return per_device(on_device, mesh, 1)(stack, rows, origin)[1]


def squared_distances(
  stack: Params, mesh: Mesh | None = None, origin: jax.Array | None = None
) -> jax.Array:
  """[S, S] float32: squared L2 distance of each pair of rows; pass an `origin`."""
  gram = inner_products(stack, mesh, origin=origin)
  squares = jnp.diagonal(gram)
  return jnp.maximum(squares[:, None] + squares[None] - 2 * gram, 0.0)


def centered_gram(
  stack: Params,
  valid: jax.Array,
  mesh: Mesh | None = None,
  rows: jax.Array | None = None,
) -> jax.Array:
  """[n, n] inner products of clients about their mean; 0 if not `valid` [n] bool."""
  # With a client subtracted from all, as clients differ less than their norms.
  gram = inner_products(stack, mesh, rows=rows, origin=valid.argmax())
  pairs = valid[:, None] & valid[None]
  gram = jnp.where(pairs, gram, 0.0)
  weights = valid / jnp.maximum(valid.sum(), 1)
  mean = jnp.matmul(gram, weights, precision=_HIGHEST)
  square = jnp.matmul(weights, mean, precision=_HIGHEST)
  gram = gram - mean[:, None] - mean[None] + square
  return jnp.where(pairs, gram, 0.0)


def _layer_gram(x: jax.Array, rows: Any, origin: Any, devices: int) -> jax.Array:
  """[n, n]: this device's share of the products of a layer x [S / D, ...]."""
  x = x[:, None] if x.ndim == 1 else x
  count = x.shape[0] * devices if rows is None else rows.shape[0]
  length = x.shape[1]  # Blocks divide this axis, in equal parts for all devices.
  height = max(1, _BLOCK // max(1, count * math.prod(x.shape[2:])) // devices) * devices
  height = min(height, -(-length // devices) * devices)
  if height > length:
    x = jnp.pad(x, [(0, 0), (0, height - length)] + [(0, 0)] * (x.ndim - 2))

  def product(i: jax.Array | int) -> jax.Array:
    # The last block starts earlier, to be in bounds; repeated values count once.
    first = jnp.minimum(i * height, x.shape[1] - height)
    block = jax.lax.dynamic_slice_in_dim(x, first, height, axis=1)
    fresh = first + jnp.arange(height) >= i * height
    block = jnp.where(fresh.reshape((1, -1) + (1,) * (x.ndim - 2)), block, 0.0)
    block = _together(block, rows, devices)
    if origin is not None:
      block = block - jax.lax.dynamic_slice_in_dim(block, origin, 1)
    return _products_with_itself(block.reshape(count, -1))

  number = -(-length // height)
  if number == 1:
    return product(0)
  none = jnp.zeros((count, count))
  return jax.lax.fori_loop(0, number, lambda i, sums: sums + product(i), none)


def _products_with_itself(x: jax.Array) -> jax.Array:
  """The matrix x x^T [n, n] of x [n, c]."""
  count = x.shape[0]
  if count < _MANY:
    return jnp.matmul(x, x.T, precision=_HIGHEST)
  height = -(-count // _PARTS)
  blocks = []
  for first in range(0, count, height):
    part = jnp.matmul(x[first : first + height], x[first:].T, precision=_HIGHEST)
    blocks.append(jnp.pad(part, ((0, 0), (first, 0))))
  upper = jnp.concatenate(blocks)
  number = jnp.arange(count) // height  # Of the part of each row.
  return jnp.where(number[:, None] <= number[None], upper, upper.T)


def _together(block: jax.Array, rows: Any, devices: int) -> jax.Array:
  """[n, h / D, ...]: this device's share of a block [S / D, h, ...] of all rows."""
  if devices == 1:
    return block if rows is None else block.at[rows].get(mode='clip')
  if rows is None:
    return jax.lax.all_to_all(block, sharding.CLIENTS, 1, 0, tiled=True)
  count = block.shape[0]
  local = rows - count * jax.lax.axis_index(sharding.CLIENTS)
  local = jnp.where((local >= 0) & (local < count), local, count)
  block = block.at[local].get(mode='fill', fill_value=0)
  return jax.lax.psum_scatter(block, sharding.CLIENTS, scatter_dimension=1, tiled=True)


def cosines(stack: Params, others: Params) -> jax.Array:
  """[S, K] float32: cosine of each row [S, ...] with each of [K, ...]; 0 for zeros."""

  def products(x: jax.Array, y: jax.Array) -> jax.Array:
    numbers = tuple(range(1, x.ndim))
    return jnp.tensordot(x, y, (numbers, numbers), precision=_HIGHEST)

  def lengths(rows: Params) -> jax.Array:
    return jnp.sqrt(tree.row_distances(rows, tree.zeros_like(rows)))

  inner = functools.reduce(
    jnp.add, jax.tree.leaves(jax.tree.map(products, stack, others))
  )
  norms = lengths(stack)[:, None] * lengths(others)[None]
  return jnp.where(norms > 0, inner / jnp.where(norms > 0, norms, 1.0), 0.0)
