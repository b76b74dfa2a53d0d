"""Merging of clusters whose mean updates are similar (StoCFL)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_HIGHEST = jax.lax.Precision.HIGHEST


class Merged(NamedTuple):
  """Clusters after new clients came and similar ones were merged."""

  assignment: jax.Array  # [M] int32 in 0..K-1, or K of clients in no cluster
  fresh: jax.Array  # [K] bool, clusters of new clients alone


def merge_similar(
  products: jax.Array,
  old: jax.Array,
  new: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
  threshold: float | jax.Array,
) -> Merged:
  """Makes each new client a cluster, and merges similar clusters until none is left.

  Two clusters are similar if the cosine of their means is at least the threshold. All
  that hang together are merged at once, and the largest one's number stays.

  `products` are [M, M] float32 of what describes clients, `old` [M] int32 clusters, K
  for none, and `new` [M] bool clients of none that begin as clusters of one.
  """
  count = len(old)
  rank = jnp.argsort(jnp.argsort(client_ids)).astype(jnp.int32)
  has_cluster = old < num_clusters
  # While they merge, clusters go by the rank of their first client; `count` is none.
  first = jnp.full(num_clusters + 1, count).at[old].min(rank)
  label = jnp.where(has_cluster, first[old], jnp.where(new, rank, count))

  def merge(loop):
    _, label = loop
    members = jax.nn.one_hot(label, count)
    sums = jnp.matmul(products, members, precision=_HIGHEST)
    sums = jnp.matmul(members.T, sums, precision=_HIGHEST)
    squares = jnp.diagonal(sums)
    lengths = jnp.sqrt(jnp.maximum(squares, 0.0))
    norms = lengths[:, None] * lengths[None]
    cosine = jnp.where(norms > 0, sums / jnp.where(norms > 0, norms, 1.0), 0.0)
    is_cluster = members.max(axis=0) > 0
    similar = (cosine >= threshold) & is_cluster[:, None] & is_cluster[None]
    component = components(similar)
    return label, jnp.append(component, count)[label]

  previous = jnp.full_like(label, -1)
  label = jax.lax.while_loop(_is_changing, merge, (previous, label))[1]
  return _numbered(label, old, has_cluster, num_clusters)


def _is_changing(loop: tuple[jax.Array, jax.Array]) -> jax.Array:
  return (loop[0] != loop[1]).any()


def components(linked: jax.Array) -> jax.Array:
  """[N] int32 first node of each connected component of `linked` [N, N] bool."""
  nodes = jnp.arange(len(linked), dtype=jnp.int32)

  def spread(loop):
    _, first = loop
    nearest_first = jnp.where(linked, first[None], len(linked)).min(axis=1)
    return first, jnp.minimum(first, nearest_first.astype(jnp.int32))

  return jax.lax.while_loop(_is_changing, spread, (nodes - 1, nodes))[1]


def _numbered(
  label: jax.Array, old: jax.Array, has_cluster: jax.Array, num_clusters: int
) -> Merged:
  """Gives clusters the number of their largest old cluster, or else a free one."""
  count = len(label)
  nodes = jnp.arange(count)
  sizes = jnp.zeros(num_clusters + 1, jnp.int32).at[old].add(has_cluster)[:num_clusters]
  first_label = jnp.full(num_clusters + 1, count).at[old].min(label)[:num_clusters]
  overlap = jnp.where(first_label[:, None] == nodes[None], sizes[:, None], 0)  # [K, M]
  number, has_number = overlap.argmax(axis=0), overlap.max(axis=0) > 0
  is_cluster = (label[:, None] == nodes[None]).any(axis=0)
  is_fresh = is_cluster & ~has_number
  none = jnp.zeros(num_clusters, bool)
  old_number = jnp.where(has_number, number, num_clusters)
  is_used = none.at[old_number].set(True, mode='drop')
  free = jnp.where(is_used, num_clusters, jnp.arange(num_clusters)).sort()
  place = jnp.cumsum(is_fresh) - 1
  new_number = free.at[place].get(mode='fill', fill_value=num_clusters)
  number = jnp.where(is_fresh, new_number, number)
  fresh_number = jnp.where(is_fresh, new_number, num_clusters)
  fresh = none.at[fresh_number].set(True, mode='drop')
  assignment = jnp.append(number, num_clusters)[label].astype(jnp.int32)
  return Merged(assignment, fresh)
