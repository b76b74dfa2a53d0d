"""Accurate sums over clients, and the means of clusters."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import platforms, sharding, tree
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Params

_HIGHEST = jax.lax.Precision.HIGHEST

# Sums of more terms than this are formed in two levels.
_GROUP = 256

# In layers with at least _LARGE parameters, rows are added to their clusters one by one
# on a CPU, and elsewhere cluster by cluster for at most _FEW_CLUSTERS clusters. All
# other sums are products of blocks of rows, limited in rows and in values.
_LARGE = 4096
_FEW_CLUSTERS = 16
_ROWS_AT_ONCE = 256
_NUMBERS_AT_ONCE = 2**24


def add_up(
  count: jax.Array | int,
  add: Callable[[jax.Array, tuple[Any, Any]], tuple[Any, Any]],
  results: Any,
  sums: Any,
  most: int | None = None,
  fewest: int | None = None,
) -> tuple[Any, Any]:
  """`jax.lax.fori_loop(0, count, add, (results, sums))` with sums in two levels.

  About sqrt(most) terms, but not fewer than `fewest`, are summed from zero before they
  are added to the total: a million equal float32 terms sum to 1 % too much one by one,
  here to 0.01 %. `results` do not depend on sums. An array `count` needs `most`.
  """
  most = int(count) if most is None else most
  group = max(math.isqrt(most), fewest or _num_clusters(sums))
  if most <= max(_GROUP, group):
    return jax.lax.fori_loop(0, count, add, (results, sums))
  nothing = jax.tree.map(jnp.zeros_like, sums)

  def add_group(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
    results, sums = carry
    last = jnp.minimum((i + 1) * group, count)
    results, part = jax.lax.fori_loop(i * group, last, add, (results, nothing))
    return results, jax.tree.map(jnp.add, sums, part)

  return jax.lax.fori_loop(0, -(-count // group), add_group, (results, sums))


def _num_clusters(sums: Any) -> int:
  """The most clusters that a tree has sums of; 1 if of none."""

  def is_sums(x: Any) -> bool:
    return isinstance(x, ClusterSums)

  by_cluster = filter(is_sums, jax.tree.leaves(sums, is_leaf=is_sums))
  return max((x.weight.shape[0] for x in by_cluster), default=1)


def total(x: jax.Array) -> jax.Array:
  """[] float32: sum of [S], in two levels; see `add_up`."""
  width = math.isqrt(max(1, x.size - 1)) + 1
  padded = jnp.pad(x, (0, -x.size % width))
  return padded.reshape(-1, width).sum(axis=1).sum()


def or_one(weight: jax.Array) -> jax.Array:
  """Weights to divide by: 1 in place of 0."""
  return jnp.where(weight > 0, weight, 1.0)


class ClusterSums(NamedTuple):
  """Running sums over the rows of each cluster, minus the cluster's origin."""

  params: Params  # [K, ...] sum of weight * (row - origin)
  weight: jax.Array  # [K] float32 sum of weights


# Not an argument: a method's own `fold` that did not hand it on to `add_rows` would
# undo the privacy of its clients without a word.
_CLIP: contextvars.ContextVar[Any] = contextvars.ContextVar('clip', default=None)


@contextlib.contextmanager
def clipped(length: jax.Array | float) -> Iterator[None]:
  """Within the block, `add_rows` clips row - origin to an L2 length."""
  token = _CLIP.set(length)
  try:
    yield
  finally:
    _CLIP.reset(token)


def are_clipped() -> bool:
  """True if the sums that are formed here are `clipped`."""
  return _CLIP.get() is not None


def clipping_factor(length: jax.Array, longest: jax.Array | float) -> jax.Array:
  """min(1, longest / length), of lengths of any shape."""
  # The length is never 0 where it is longer, and not infinite where both are.
  return jnp.where(length > longest, longest / jnp.maximum(length, 1e-38), 1.0)


def no_sums(like: Params) -> ClusterSums:
  """Zero sums for clusters [K, ...]."""
  return ClusterSums(
    tree.zeros_like(like), jnp.zeros(jax.tree.leaves(like)[0].shape[0])
  )


def add_rows(
  sums: ClusterSums,
  stack: Params,
  cluster: jax.Array,
  weights: jax.Array,
  origins: Params,
) -> ClusterSums:
  """Adds finite rows [S, ...] minus their origins to the sums of clusters [S] int32.

  `weights` [S] float32 are not negative; `origins` [K, ...] are the same in every call.
  """
  chex.assert_tree_shape_prefix((stack, cluster), weights.shape)
  num_rows, num_clusters = weights.shape[0], sums.weight.shape[0]
  one_hot, longest = jax.nn.one_hot(cluster, num_clusters), _CLIP.get()
  members = counted = one_hot * weights[:, None]
  if longest is not None:
    length = jnp.sqrt(tree.row_distances(stack, tree.take(origins, cluster)))
    weights = weights * clipping_factor(length, longest)
    members = one_hot * weights[:, None]

  def add(sum_of: jax.Array, x: jax.Array, origin: jax.Array) -> jax.Array:
    def one_by_one(i: jax.Array, carry: tuple[None, jax.Array]) -> Any:
      # Updates one sum per row; a product would read and write all K.
      k = cluster[i]
      return None, carry[1].at[k].add(weights[i] * (x[i] - origin[k]))

    def product(first: jax.Array | int, count: int) -> jax.Array:
      def part(a):
        return jax.lax.dynamic_slice_in_dim(a, first, count)

      differences = part(x) - origin[part(cluster)]
      return jnp.einsum('sk,s...->k...', part(members), differences, precision=_HIGHEST)

    def cluster_by_cluster(first: jax.Array | int, count: int) -> jax.Array:
      # One pass over the rows in their layout; products would copy them to another.
      def part(a):
        return jax.lax.dynamic_slice_in_dim(a, first, count)

      def cluster_sum(k):
        share = part(members)[:, k].reshape((-1,) + (1,) * (x.ndim - 1))
        return share * (part(x) - origin[k][None])

      def plus(a, b):
        return tuple(map(jnp.add, a, b))

      terms = tuple(map(cluster_sum, range(num_clusters)))
      return jnp.stack(jax.lax.reduce(terms, (0.0,) * num_clusters, plus, (0,)))

    if num_rows == 1 == num_clusters:  # One pass, fused with the row's computation.
      return sum_of + weights[0] * (x - origin)
    large = x[0].size >= _LARGE
    block = max(1, min(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // max(1, x[0].size)))
    block_sum = product
    if large and num_clusters <= _FEW_CLUSTERS:
      block, block_sum = _ROWS_AT_ONCE, cluster_by_cluster

    def add_block(i: jax.Array | int, carry: tuple[None, jax.Array]) -> Any:
      return None, carry[1] + block_sum(i * block, block)

    def rows(sum_of):
      return add_up(num_rows, one_by_one, None, sum_of, fewest=num_clusters)[1]

    def blocks(sum_of):
      whole, remainder = divmod(num_rows, block)
      if whole:
        sum_of = add_up(whole, add_block, None, sum_of)[1]
      return sum_of + block_sum(whole * block, remainder) if remainder else sum_of

    if num_rows == 1:
      return rows(sum_of)
    if not large:
      return blocks(sum_of)
    return platforms.choose(rows, blocks, sum_of)

  params = jax.tree.map(add, sums.params, stack, origins)
  weight = jax.vmap(total, in_axes=1)(counted)
  return ClusterSums(params, sums.weight + weight)


def add_to_one(
  sums: ClusterSums, stack: Params, weights: jax.Array, origin: Params
) -> ClusterSums:
  """Adds rows [S, ...] with weights [S] to the sums of a single cluster."""
  first = jnp.zeros(weights.shape, jnp.int32)
  return add_rows(sums, stack, first, weights, origin)


def mean_of(sums: ClusterSums, origins: Params) -> Params:
  """[K, ...] means, as of `add_rows`; the origin where the total weight is 0."""

  def mean(sum_of: jax.Array, origin: jax.Array) -> jax.Array:
    weight = or_one(sums.weight.reshape((-1,) + (1,) * (origin.ndim - 1)))
    if sharding.is_identical:  # XLA forms this product in some programs only.
      return origin + sum_of * (1 / weight)
    return origin + sum_of / weight

  return jax.tree.map(mean, sums.params, origins)


def cluster_sums(
  stack: Params,
  cluster: jax.Array,
  weights: jax.Array,
  origins: Params,
  mesh: Mesh | None = None,
) -> ClusterSums:
  """Sums over the rows of each cluster; arguments as in `weighted_mean`."""
  shards = sharding.shards_per_device(mesh, weights.shape[0])

  def on_device(stack, cluster, weights, origins):
    def add(stack, cluster, weights):
      return add_rows(no_sums(origins), stack, cluster, weights, origins)

    rows = stack, cluster, weights
    if not shards:
      return None, add(*rows)
    rows = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), rows)
    return None, jax.lax.map(lambda r: add(*r), rows)

  run = per_device(on_device, mesh, 3, shards > 0)
  return run(stack, cluster, weights, origins)[1]


def weighted_mean(
  stack: Params,
  cluster: jax.Array,
  weights: jax.Array,
  origins: Params,
  mesh: Mesh | None = None,
) -> Params:
  """Mean [K, ...] of the rows of each cluster (Eq. 9, or Eq. 2 with weights n_i).

  Arguments as in `add_rows`; `origins` are near the clusters, and the means of those
  without weight. The `mesh` has the devices that the rows are split over, if any.
  """
  return mean_of(cluster_sums(stack, cluster, weights, origins, mesh), origins)
