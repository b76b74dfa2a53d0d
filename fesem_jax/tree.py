"""Algebra on stacked pytrees: one pytree whose leaves have a leading axis."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.base import Cohort, Params

_HIGHEST = jax.lax.Precision.HIGHEST

# Partial sums of a squared distance, and from how many parameters of a layer on.
_LANES = 512
_MANY = 16 * _LANES


def take(stack: Params, ids: jax.Array) -> Params:
  """Rows `ids` [S] of a stack [M, ...]; ids beyond the end give the last row."""
  return jax.tree.map(lambda x: jnp.asarray(x).at[ids].get(mode='clip'), stack)


def rows_of(stack: Params, cohort: Cohort) -> Params:
  """The cohort's rows [S, ...] of a stack [M, ...]."""
  return stack if cohort.everyone else take(stack, cohort.ids)


def with_rows(stack: Params, cohort: Cohort, rows: Params) -> Params:
  """The stack [M, ...] with the cohort's rows [S, ...] in their places."""
  return rows if cohort.everyone else put(stack, cohort.ids, rows)


def put(stack: Params, ids: jax.Array, rows: Params) -> Params:
  """The stack [M, ...] with rows [S, ...] at `ids`; ids beyond the end are dropped."""
  return jax.tree.map(lambda x, r: x.at[ids].set(r, mode='drop'), stack, rows)


def unstack(stack: Params, i: int) -> Params:
  """Row `i` of a stack, without its leading axis."""
  return jax.tree.map(lambda x: x[i], stack)


def repeat(tree: Params, times: int) -> Params:
  """A stack of `times` equal rows."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), tree)


def expand(tree: Params) -> Params:
  """A stack with one row."""
  return jax.tree.map(lambda x: x[None], tree)


def zeros_like(tree: Params) -> Params:
  """The tree with every parameter 0."""
  return jax.tree.map(jnp.zeros_like, tree)


def where(keep: jax.Array, a: Params, b: Params) -> Params:
  """Row by row, a [S, ...] where `keep` [S] holds and b [S, ...] elsewhere."""

  def select(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape(keep.shape + (1,) * (x.ndim - keep.ndim)), x, y)

  return jax.tree.map(select, a, b)


def all_finite(stack: Params) -> jax.Array:
  """[S] bool: whether every parameter of each row is finite."""
  # 0 times anything not finite is NaN; a sum is one pass, a mask would be two.
  zeros = [(0 * x).sum(axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(stack)]
  return functools.reduce(jnp.add, zeros) == 0


def squared_distances(stack: Params, centers: Params) -> jax.Array:
  """Squared L2 distance of each row [S, ...] to each center [K, ...]: [S, K].

  Summed from differences, never from the expanded form |w|^2 - 2wc + |c|^2:
  clients of one center lie so close together that the expansion loses all
  digits. Nothing of size S * K * P exists. A stack split over devices must come
  through `sharding.per_device`.
  """
  if jax.default_backend() == 'cpu':
    # One pass over the stack: a row stays in the cache while the centers pass by.
    return jax.lax.map(lambda row: _distances_of_one(row, centers), stack)
  num_centers = jax.tree.leaves(centers)[0].shape[0]
  center = lambda k: jax.tree.map(lambda c: c[k : k + 1], centers)
  columns = [row_distances(stack, center(k)) for k in range(num_centers)]
  return jnp.stack(columns, axis=-1)


def _distances_of_one(row: Params, centers: Params) -> jax.Array:
  """[K] float32: squared L2 distance of one model to each of [K, ...], on CPU.

  XLA's CPU compiler adds up a row number by number; partial sums side by side are
  vectorized, which pays for large layers.
  """

  def distances(x: jax.Array, c: jax.Array) -> jax.Array:
    x, c = x.reshape(1, -1), c.reshape(c.shape[0], -1)
    if x.size < _MANY:
      return jnp.square(x - c).sum(axis=-1)
    blocks = x.size // _LANES

    def add_block(i: jax.Array, partial: jax.Array) -> jax.Array:
      block = lambda y: jax.lax.dynamic_slice_in_dim(y, i * _LANES, _LANES, axis=-1)
      return partial + jnp.square(block(x) - block(c))

    none = jnp.zeros((c.shape[0], _LANES))
    partial = jax.lax.fori_loop(0, blocks, add_block, none)
    rest = jnp.square(x[:, blocks * _LANES :] - c[:, blocks * _LANES :])
    return partial.sum(axis=-1) + rest.sum(axis=-1)

  leaves = jax.tree.leaves(jax.tree.map(distances, row, centers))
  return functools.reduce(jnp.add, leaves)


def row_distances(a: Params, b: Params) -> jax.Array:
  """[S] float32: squared L2 distance of each row of a [S, ...] to that of b.

  Either may be a single row, [1, ...], which then stands beside every other.
  """

  def distance(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.square(x - y).sum(axis=tuple(range(1, x.ndim)))

  return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(distance, a, b)))


def inner_products(stack: Params) -> jax.Array:
  """[S, S] float32: inner product of each pair of rows."""

  def product(x: jax.Array) -> jax.Array:
    flat = x.reshape(x.shape[0], -1)
    return jnp.matmul(flat, flat.T, precision=_HIGHEST)

  return functools.reduce(jnp.add, map(product, jax.tree.leaves(stack)))


class ClusterSums(NamedTuple):
  """Running sums of the rows of each cluster.

  Attributes:
    params: [K, ...] sum of weight * row.
    weight: [K] float32 sum of weights.
  """

  params: Params
  weight: jax.Array


def no_sums(like: Params) -> ClusterSums:
  """Sums of no rows, for clusters [K, ...]."""
  return ClusterSums(zeros_like(like), jnp.zeros(jax.tree.leaves(like)[0].shape[0]))


def add_rows(
  sums: ClusterSums, stack: Params, cluster: jax.Array, weights: jax.Array
) -> ClusterSums:
  """Adds rows [S, ...] to the sums of their clusters.

  Args:
    sums: of K clusters.
    stack: [S, ...] finite rows.
    cluster: [S] int32 in 0..K-1.
    weights: [S] float32, not negative; rows of weight 0 do not count.
  """
  if weights.shape[0] == 1:  # Touch the one row, not all K.
    add = lambda s, x: s.at[cluster[0]].add(weights[0] * x[0])
    return jax.tree.map(add, sums, ClusterSums(stack, jnp.ones(1)))
  members = jax.nn.one_hot(cluster, sums.weight.shape[0]) * weights[:, None]
  product = lambda x: jnp.einsum('sk,s...->k...', members, x, precision=_HIGHEST)
  return ClusterSums(
    jax.tree.map(lambda s, x: s + product(x), sums.params, stack),
    sums.weight + members.sum(axis=0),
  )


def mean_of(sums: ClusterSums, empty: Params) -> Params:
  """[K, ...] means; a cluster whose weights sum to 0 gets its row of `empty`."""

  def mean(total: jax.Array, e: jax.Array) -> jax.Array:
    weight = sums.weight.reshape((-1,) + (1,) * (total.ndim - 1))
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), e)

  return jax.tree.map(mean, sums.params, empty)


def weighted_mean(
  stack: Params, cluster: jax.Array, weights: jax.Array, empty: Params
) -> Params:
  """Mean of the rows of each cluster (Eq. 9, or Eq. 2 with weights n_i).

  Args:
    stack: [S, ...] finite rows.
    cluster: [S] int32 in 0..K-1.
    weights: [S] float32, not negative; rows of weight 0 do not count.
    empty: [K, ...] what a cluster whose weights sum to 0 gets.

  Returns:
    [K, ...].
  """
  return mean_of(add_rows(no_sums(empty), stack, cluster, weights), empty)
