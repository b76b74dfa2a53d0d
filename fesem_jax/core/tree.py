"""Algebra on stacked pytrees: one pytree whose leaves have a leading axis."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import platforms
from fesem_jax.core.offloading import is_offloaded
from fesem_jax.core.types import Cohort, Params

# On a CPU, a squared distance is computed as this many partial sums, with this many
# terms of each per loop iteration.
_LANES = 1024
_TERMS = 4

# On a TPU, rows of a stack of at most this many models are selected, not gathered.
_FEW = 4


def take(stack: Params, ids: jax.Array) -> Params:
  """Rows `ids` [S] of a stack [M, ...]; ids beyond the end return the last row."""

  def rows(x: Any) -> Any:
    if is_offloaded(x):
      return x.take(ids)
    return jnp.asarray(x).at[ids].get(mode='clip', wrap_negative_indices=False)

  return jax.tree.map(rows, stack, is_leaf=is_offloaded)


def rows_of_few(models: Params, ids: jax.Array, mesh: Mesh | None = None) -> Params:
  """Rows `ids` [S] of few models [R, ...], as of `take`, without memory on a TPU."""
  leaves = jax.tree.leaves(models)
  if not leaves or leaves[0].shape[0] > _FEW:
    return take(models, ids)
  if mesh is not None:
    on_tpu = mesh.devices.flat[0].platform == 'tpu'
    return _selected(models, ids) if on_tpu else take(models, ids)
  return platforms.choose(take, take, models, ids, tpu=_selected)


def _selected(models: Params, ids: jax.Array) -> Params:
  def rows(x: jax.Array) -> jax.Array:
    index = ids.reshape(-1, *[1] * (x.ndim - 1))
    chosen = jnp.broadcast_to(x[0], (ids.shape[0], *x.shape[1:]))
    for r in range(1, x.shape[0]):
      chosen = jnp.where(index >= r, x[r], chosen)
    return chosen

  return jax.tree.map(rows, models)


def rows_of(stack: Params, cohort: Cohort) -> Params:
  """The cohort's rows [S, ...] of a stack [M, ...], in the same memory space."""
  if cohort.everyone:
    return stack

  def rows(x: Any) -> Any:
    if not is_offloaded(x):
      return take(x, cohort.ids)
    if cohort.ids.shape[0] % x.mesh.size:  # Outside of rounds.
      return x.fetch(cohort.ids)
    return x.rows_of(cohort.ids)

  return jax.tree.map(rows, stack, is_leaf=is_offloaded)


def with_rows(stack: Params, cohort: Cohort, rows: Params) -> Params:
  """The stack [M, ...] with the cohort's rows [S, ...] at their positions."""
  return rows if cohort.everyone else put(stack, cohort.ids, rows)


def put(stack: Params, ids: jax.Array, rows: Params) -> Params:
  """The stack [M, ...] with rows [S, ...] at `ids`; ids beyond the end are dropped."""

  def changed(x: Any, r: Any) -> Any:
    if is_offloaded(x):
      return x.with_rows(ids, r)
    return x.at[ids].set(r, mode='drop', wrap_negative_indices=False)

  return jax.tree.map(changed, stack, rows, is_leaf=is_offloaded)


def merge(first: Params, second: Params) -> Params:
  """All parameters of two trees; each lacks the other's, or has None in their place."""
  if not isinstance(first, Mapping) or not isinstance(second, Mapping):
    return second if first is None else first
  return {n: merge(first.get(n), second.get(n)) for n in {**first, **second}}


def unstack(stack: Params, i: int) -> Params:
  """Row `i` of a stack, without its leading axis."""
  return jax.tree.map(lambda x: x[i], stack)


def repeat(tree: Params, times: int) -> Params:
  """A stack of `times` equal rows."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), tree)


def mixtures(shares: jax.Array, stack: Params) -> Params:
  """[N, ...] means of rows [K, ...] by shares [N, K] float32 that add up to 1."""

  def mean(x: jax.Array) -> jax.Array:
    return jnp.tensordot(shares, x, axes=1, precision=jax.lax.Precision.HIGHEST)

  return jax.tree.map(mean, stack)


def expand(tree: Params) -> Params:
  """A stack with one row."""
  return jax.tree.map(lambda x: x[None], tree)


def zeros_like(tree: Params) -> Params:
  """The tree with every parameter 0."""
  return jax.tree.map(jnp.zeros_like, tree)


def normal_like(key: jax.Array, like: Params) -> Params:
  """Standard normal draws of the shapes of a tree."""
  leaves, structure = jax.tree.flatten(like)
  keys = jax.random.split(key, len(leaves))
  draws = [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
  return jax.tree.unflatten(structure, draws)


def where(keep: jax.Array, a: Params, b: Params) -> Params:
  """Rows of a [S, ...] where `keep` [S] is True, and of b [S, ...] elsewhere."""

  def select(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape(keep.shape + (1,) * (x.ndim - keep.ndim)), x, y)

  return jax.tree.map(select, a, b)


def all_finite(stack: Params) -> jax.Array:
  """[S] bool: whether every parameter of each row is finite."""
  # 0 times a value that is not finite is NaN. A sum takes one pass, a mask two.
  zeros = [(0 * x).sum(axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(stack)]
  return functools.reduce(jnp.add, zeros) == 0


def squared_distances(stack: Params, centers: Params) -> jax.Array:
  """Squared L2 distance of each row [S, ...] to each center [K, ...]: [S, K].

  From differences: |w|^2 - 2wc + |c|^2 loses all digits. Split stacks: `per_device`.
  """
  return platforms.choose(_row_by_row, _center_by_center, stack, centers)


def _row_by_row(stack: Params, centers: Params) -> jax.Array:
  # Flattened before the loop: inside it, each index would take a division.
  def flat(x):
    return x.reshape(x.shape[0], -1)

  stack, centers = jax.tree.map(flat, (stack, centers))
  rows = jnp.arange(jax.tree.leaves(stack)[0].shape[0])

  to_all = functools.partial(_distances_of_row, stack, centers)
  return jax.lax.map(to_all, (rows, stack))


def _center_by_center(stack: Params, centers: Params) -> jax.Array:
  columns = []
  for k in range(jax.tree.leaves(centers)[0].shape[0]):
    center = jax.tree.map(lambda c, k=k: c[k : k + 1], centers)
    columns.append(row_distances(stack, center))
  return jnp.stack(columns, axis=-1)


def _distances_of_row(
  stack: Params, centers: Params, at: tuple[jax.Array, Params]
) -> jax.Array:
  """[K] float32: distances of a row to each of [K, P], by partial sums."""
  row, one = at

  def distances(x: jax.Array, one: jax.Array, c: jax.Array) -> jax.Array:
    size, block = c.shape[1], _TERMS * _LANES

    def squares(start: jax.Array | int, width: int) -> jax.Array:
      part = jax.lax.dynamic_slice(x, (row, start), (1, width))
      return jnp.square(part - jax.lax.dynamic_slice_in_dim(c, start, width, axis=1))

    def add_terms(start: jax.Array | int, terms: int, partial: jax.Array) -> jax.Array:
      for term in range(terms):
        partial = partial + squares(start + term * _LANES, _LANES)
      return partial

    if size < 2 * block:  # A loop of one block is not faster.
      return jnp.square(one[None] - c).sum(axis=-1)
    blocks, remaining = size // block, size % block // _LANES

    def add_block(i, partial):
      return add_terms(i * block, _TERMS, partial)

    none = jnp.zeros((c.shape[0], _LANES))
    partial = jax.lax.fori_loop(0, blocks, add_block, none)
    partial = add_terms(blocks * block, remaining, partial)
    summed = blocks * block + remaining * _LANES
    return partial.sum(axis=-1) + squares(summed, size - summed).sum(axis=-1)

  leaves = jax.tree.leaves(jax.tree.map(distances, stack, one, centers))
  return functools.reduce(jnp.add, leaves)


def row_distances(a: Params, b: Params) -> jax.Array:
  """[S] float32: squared L2 distance of each row [S, ...] to that of b, or to one."""

  def distance(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.square(x - y).sum(axis=tuple(range(1, x.ndim)))

  return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(distance, a, b)))
