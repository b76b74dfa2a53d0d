"""Agglomerative clustering of a matrix of distances, inside a compiled program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

LINKAGES = ('average', 'complete', 'single')


def agglomerate(
  distances: jax.Array,
  exists: jax.Array,
  num_clusters: int,
  threshold: float | jax.Array | None = None,
  linkage: str = 'average',
) -> jax.Array:
  """Merges the two nearest clusters again and again.

  Args:
    distances: [n, n] float32, symmetric.
    exists: [n] bool, what to cluster.
    num_clusters: K; merging goes on until no more than K clusters are left.
    threshold: with one, it also goes on while the nearest two are no farther apart.
    linkage: the distance of two clusters is the mean of the distances of their members,
      the largest ('complete') or the smallest one ('single').

  Returns:
    [n] int32, the first member of each one's cluster; its own place where it does not
    exist.
  """
  both = exists[:, None] & exists[None] & ~jnp.eye(len(exists), dtype=bool)
  apart = jnp.where(both, (distances + distances.T) / 2, jnp.inf)

  def goes_on(nearest, merges):
    near = False if threshold is None else nearest <= threshold
    return (exists.sum() - merges > num_clusters) | near

  return merge_while(apart, goes_on, linkage)


def merge_while(
  apart: jax.Array,
  goes_on: Callable[[jax.Array, jax.Array], jax.Array],
  linkage: str,
) -> jax.Array:
  """Merges the two nearest clusters while a rule says so, and there are two.

  Of pairs as near as each other, the one that comes first is merged.

  Args:
    apart: [n, n] float32, symmetric; infinite on the diagonal, and in the whole row of
      what is not to be clustered.
    goes_on: (least distance of two clusters, merges so far) -> [] bool.
    linkage: see `agglomerate`.

  Returns:
    [n] int32, the first member of each one's cluster.
  """
  places = jnp.arange(len(apart), dtype=jnp.int32)

  def more(loop):
    nearest = loop[0].min()
    return jnp.isfinite(nearest) & goes_on(nearest, loop[3])

  def merge(loop):
    apart, sizes, first, merges = loop
    i, j = jnp.divmod(apart.argmin(), len(apart))  # i < j, since i comes first.
    if linkage == 'complete':
      new = jnp.maximum(apart[i], apart[j])
    elif linkage == 'single':
      new = jnp.minimum(apart[i], apart[j])
    else:
      new = (sizes[i] * apart[i] + sizes[j] * apart[j]) / (sizes[i] + sizes[j])
    gone = (places == i) | (places == j) | ~jnp.isfinite(apart[i])
    new = jnp.where(gone, jnp.inf, new)
    apart = apart.at[i].set(new).at[:, i].set(new)
    apart = apart.at[j].set(jnp.inf).at[:, j].set(jnp.inf)
    sizes = sizes.at[i].add(sizes[j])
    return apart, sizes, jnp.where(first == j, i, first).astype(jnp.int32), merges + 1

  start = apart, jnp.ones(len(apart)), places, jnp.int32(0)
  return jax.lax.while_loop(more, merge, start)[2]
