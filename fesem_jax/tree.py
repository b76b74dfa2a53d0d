"""Algebra on stacked pytrees: one pytree whose leaves have a leading axis."""

import functools

import jax
import jax.numpy as jnp

from fesem_jax.base import Cohort, Params

_HIGHEST = jax.lax.Precision.HIGHEST


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
  leaves = jax.tree.leaves(stack)
  return jnp.stack(
    [jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in leaves]
  ).all(axis=0)


def squared_distances(stack: Params, centers: Params) -> jax.Array:
  """Squared L2 distance of each row [S, ...] to each center [K, ...]: [S, K].

  Summed from differences, never from the expanded form |w|^2 - 2wc + |c|^2:
  clients of one center lie so close together that the expansion loses all
  digits. Each center is one fused pass; nothing of size S * K * P exists.
  """
  num_centers = jax.tree.leaves(centers)[0].shape[0]

  def to_center(x: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.square(x - c).sum(axis=tuple(range(1, x.ndim)))

  columns = []
  for k in range(num_centers):
    center = jax.tree.map(lambda c: c[k : k + 1], centers)  # noqa: B023
    parts = jax.tree.map(to_center, stack, center)
    columns.append(sum(jax.tree.leaves(parts)))
  return jnp.stack(columns, axis=-1)


def inner_products(stack: Params) -> jax.Array:
  """[S, S] float32: inner product of each pair of rows."""

  def product(x: jax.Array) -> jax.Array:
    flat = x.reshape(x.shape[0], -1)
    return jnp.matmul(flat, flat.T, precision=_HIGHEST)

  return functools.reduce(jnp.add, map(product, jax.tree.leaves(stack)))


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
  num_clusters = jax.tree.leaves(empty)[0].shape[0]
  members = jax.nn.one_hot(cluster, num_clusters, dtype=jnp.float32)
  members = members * weights[:, None]
  total = members.sum(axis=0)
  share = members / jnp.where(total > 0, total, 1.0)[None]

  def mean(x: jax.Array, e: jax.Array) -> jax.Array:
    value = jnp.einsum('sk,s...->k...', share, x, precision=_HIGHEST)
    return jnp.where(total.reshape((-1,) + (1,) * (x.ndim - 1)) > 0, value, e)

  return jax.tree.map(mean, stack, empty)
