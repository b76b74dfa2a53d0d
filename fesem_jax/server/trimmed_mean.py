"""Trimmed means and medians of each coordinate of clients' models."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sharding, sums
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Params

_HIGHEST = jax.lax.Precision.HIGHEST

# So many numbers are compared at a time. On a CPU they stay in a cache. Accelerators,
# on which no size was measured, have larger blocks, since each takes 64 steps.
_NUMBERS_AT_ONCE, _NUMBERS_ON_ACCELERATORS = 2**18, 2**24
_BITS = 32


def trimmed_mean(
  stack: Params,
  cluster: jax.Array,
  counts: jax.Array,
  beta: float,
  origins: Params,
  mesh: Mesh | None = None,
) -> Params:
  """Coordinate-wise trimmed mean [K, ...] of the rows of each cluster, by bisection.

  Of n rows, floor(beta n) are dropped at each end; 0.5 gives the median. NaN counts as
  larger than all numbers. For the other arguments, see `robust`.
  """
  num_clusters = jax.tree.leaves(origins)[0].shape[0]
  if beta == 0:
    weights = counts.astype(jnp.float32)
    return sums.weighted_mean(stack, cluster, weights, origins, mesh)
  cluster = jnp.where(counts, cluster, num_clusters)
  sizes = jnp.bincount(cluster, length=num_clusters + 1)[:-1]
  cut = jnp.floor(variable(beta) * sizes + 1e-4).astype(sizes.dtype)
  cut = jnp.maximum(jnp.minimum(cut, (sizes - 1) // 2), 0)
  devices, at_once = 1, _NUMBERS_AT_ONCE
  if mesh is not None:
    devices = mesh.size
    if mesh.devices.flat[0].platform != 'cpu':
      at_once = _NUMBERS_ON_ACCELERATORS

  def on_device(stack, origins, cluster, sizes, cut):
    def move(columns: jax.Array, about: jax.Array) -> jax.Array:
      if devices == 1:
        return _move_of_columns(columns, about, cluster, sizes, cut)
      # [S / D, D * w] of this device's clients -> [S, w] of this device's columns.
      columns = jax.lax.all_to_all(columns, sharding.CLIENTS, 1, 0, tiled=True)
      width = columns.shape[1]
      at = jax.lax.axis_index(sharding.CLIENTS) * width
      local_origins = jax.lax.dynamic_slice_in_dim(about, at, width, axis=1)
      moved = _move_of_columns(columns, local_origins, cluster, sizes, cut)
      whole = jnp.zeros_like(about)
      return jax.lax.dynamic_update_slice_in_dim(whole, moved, at, axis=1)

    def by_blocks(x: jax.Array, origin: jax.Array) -> jax.Array:
      flat, about = x.reshape(x.shape[0], -1), origin.reshape(origin.shape[0], -1)
      width = max(1, at_once // max(1, x.shape[0])) * devices
      whole, remainder = divmod(flat.shape[1], width)

      def add_block(start: jax.Array | int, width: int, moves: jax.Array) -> jax.Array:
        def part(a):
          return jnp.pad(
            jax.lax.dynamic_slice_in_dim(a, start, width, axis=1),
            ((0, 0), (0, -width % devices)),
          )

        moved = move(part(flat), part(about))[:, :width]
        return jax.lax.dynamic_update_slice_in_dim(moves, moved, start, axis=1)

      moves = jnp.zeros_like(about)
      if whole:

        def block(i, moves):
          return add_block(i * width, width, moves)

        moves = jax.lax.fori_loop(0, whole, block, moves)
      if remainder:
        moves = add_block(whole * width, remainder, moves)
      return moves.reshape(origin.shape)

    return None, jax.tree.map(by_blocks, stack, origins)

  _, moves = per_device(on_device, mesh, 1)(stack, origins, cluster, sizes, cut)
  return jax.tree.map(jnp.add, origins, moves)


def _move_of_columns(
  columns: jax.Array,
  origin: jax.Array,
  cluster: jax.Array,
  sizes: jax.Array,
  cut: jax.Array,
) -> jax.Array:
  """[K, w] trimmed means of columns [S, w] minus their origins [K, w]."""
  keys = _ordered(columns)
  members = jax.nn.one_hot(cluster, len(sizes)).T
  num_kept, cut = (x[:, None].astype(jnp.float32) for x in (sizes - 2 * cut, cut))
  least = _keys_of_ranks(keys, cluster, members, cut)
  most = _keys_of_ranks(keys, cluster, members, cut + num_kept - 1)
  # An infinite value inside has a NaN as the largest, which `ends` adds.
  is_between = (keys > least[cluster]) & (keys < most[cluster]) & jnp.isfinite(columns)
  values = jnp.where(is_between, columns, origin[cluster])
  ones = (cluster < len(sizes)).astype(jnp.float32)
  between = sums.cluster_sums(values, cluster, ones, origin).params

  count_least = jnp.where(
    least < most, _count(keys <= least[cluster], members) - cut, num_kept
  )
  count_most = cut + num_kept - _count(keys < most[cluster], members)
  ends = count_least * (_value(least) - origin)
  ends += jnp.where(least < most, count_most * (_value(most) - origin), 0.0)
  return jnp.where(num_kept > 0, (between + ends) / jnp.maximum(num_kept, 1.0), 0.0)


def _keys_of_ranks(
  keys: jax.Array, cluster: jax.Array, members: jax.Array, ranks: jax.Array
) -> jax.Array:
  """[K, w] int32: the largest x with at most `rank` [K, 1] of the keys [S, w] below."""

  def add_bit(i: jax.Array, bits: jax.Array) -> jax.Array:
    # Of the first, the sign, 2^31 is -2^31: both lead from the least number to 0.
    larger = bits + jnp.left_shift(jnp.int32(1), _BITS - 1 - i)
    below = _count(keys < larger[cluster], members)
    return jnp.where(below <= ranks, larger, bits)

  least = jnp.full((len(members), keys.shape[1]), jnp.iinfo(jnp.int32).min)
  return jax.lax.fori_loop(0, _BITS, add_bit, least)


def _count(mask: jax.Array, members: jax.Array) -> jax.Array:
  """[K, w] float32, how many rows of a mask [S, w] are True; exact below 2^24 rows."""
  return jnp.matmul(members, mask.astype(jnp.float32), precision=_HIGHEST)


def _ordered(x: jax.Array) -> jax.Array:
  """int32 numbers in the order of float32 numbers; NaN is the largest."""
  bits = jax.lax.bitcast_convert_type(x, jnp.int32)
  largest = jnp.iinfo(jnp.int32).max
  return jnp.where(jnp.isnan(x), largest, jnp.where(bits < 0, bits ^ largest, bits))


def _value(key: jax.Array) -> jax.Array:
  """The float32 numbers of `_ordered`."""
  bits = jnp.where(key < 0, key ^ jnp.iinfo(jnp.int32).max, key)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)
