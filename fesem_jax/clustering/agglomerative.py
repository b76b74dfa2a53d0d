"""Agglomerative clustering of a matrix of distances, inside a compiled program."""

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
  places = jnp.arange(len(exists), dtype=jnp.int32)

  def goes_on(loop):
    apart, _, _, count = loop
    near = False if threshold is None else apart.min() <= threshold
    return (count > 1) & ((count > num_clusters) | near)

  def merge(loop):
    apart, sizes, first, count = loop
    i, j = jnp.divmod(apart.argmin(), len(exists))  # i < j, since i comes first.
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
    return apart, sizes, jnp.where(first == j, i, first).astype(jnp.int32), count - 1

  start = apart, jnp.ones(len(exists)), places, exists.sum()
  return jax.lax.while_loop(goes_on, merge, start)[2]
