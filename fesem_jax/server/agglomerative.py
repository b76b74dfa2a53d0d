"""Agglomerative clustering of a matrix of distances, inside a compiled program."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Linkage = Literal['average', 'complete', 'ward']


def agglomerate(
  distances: jax.Array,
  exists: jax.Array,
  num_clusters: int,
  threshold: float | jax.Array | None = None,
) -> jax.Array:
  """[n] int32: the first member of each item's cluster, by average linkage.

  Items that exist [n] bool, at symmetric distances [n, n], merge until K clusters are
  left, and while the nearest two are no farther apart than a threshold, if any.
  """
  pairs = exists[:, None] & exists[None] & ~jnp.eye(len(exists), dtype=bool)
  pair_distances = jnp.where(pairs, (distances + distances.T) / 2, jnp.inf)

  def goes_on(nearest, merges):
    is_near = False if threshold is None else nearest <= threshold
    return (exists.sum() - merges > num_clusters) | is_near

  return merge_while(Merging.of(pair_distances), goes_on, 'average').first


class Merging(NamedTuple):
  """Clusters that are being merged."""

  # [n, n] float32 distances of clusters, symmetric; infinite on the diagonal, in the
  # rows of clusters that are merged into others, and of what is not clustered.
  distances: jax.Array
  # [n] float32 members of the cluster whose first member is at this place.
  sizes: jax.Array
  first: jax.Array  # [n] int32 first member of each one's cluster
  merges: jax.Array  # [] int32 how many merges there were

  @classmethod
  def of(cls, distances: jax.Array) -> 'Merging':
    """Clusters of one member each."""
    places = jnp.arange(len(distances), dtype=jnp.int32)
    return cls(distances, jnp.ones(len(distances)), places, jnp.int32(0))


def merge_while(
  merging: Merging,
  goes_on: Callable[[jax.Array, jax.Array], jax.Array],
  linkage: Linkage,
) -> Merging:
  """Merges the two nearest clusters while `goes_on(least distance, merges so far)`.

  'ward' takes squared distances, and merges the two whose union raises the sum of
  squared distances to means least. Of equal pairs, the first is merged.
  """

  def has_pair(loop: Merging) -> jax.Array:
    nearest = loop.distances.min()
    return jnp.isfinite(nearest) & goes_on(nearest, loop.merges)

  def merge(loop: Merging) -> Merging:
    distances, sizes, first, merges = loop
    i, j = jnp.divmod(distances.argmin(), len(distances))  # i < j, since i comes first.
    if linkage == 'complete':
      new = jnp.maximum(distances[i], distances[j])
    elif linkage == 'ward':
      total = (sizes[i] + sizes) * distances[i] + (sizes[j] + sizes) * distances[j]
      new = (total - sizes * distances[i, j]) / (sizes[i] + sizes[j] + sizes)
    else:
      new = (sizes[i] * distances[i] + sizes[j] * distances[j]) / (sizes[i] + sizes[j])
    # That includes itself, and clusters that are gone.
    new = jnp.where(jnp.isfinite(distances[i]), new, jnp.inf)
    distances = distances.at[i].set(new).at[:, i].set(new)
    distances = distances.at[j].set(jnp.inf).at[:, j].set(jnp.inf)
    sizes = sizes.at[i].add(sizes[j])
    first = jnp.where(first == j, i, first).astype(jnp.int32)
    return Merging(distances, sizes, first, merges + 1)

  return jax.lax.while_loop(has_pair, merge, merging)
