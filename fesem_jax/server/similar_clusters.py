"""Clusters that are merged while the means of their clients are similar (StoCFL)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_HIGHEST = jax.lax.Precision.HIGHEST


class Merged(NamedTuple):
  """Clusters after new clients came and similar ones were merged."""

  assignment: jax.Array  # [M] int32 in 0..K-1, or K of clients in no cluster
  fresh: jax.Array  # [K] bool, clusters of new clients alone
  number: jax.Array  # [] int32 how many there are; more than K where numbers ran out


def merge_similar(
  products: jax.Array,
  old: jax.Array,
  new: jax.Array,
  client_ids: jax.Array,
  num_clusters: int,
  threshold: float | jax.Array,
) -> Merged:
  """Each new client is a cluster; then similar clusters are merged until none is left.

  Two clusters are similar if the cosine of the means of their clients is at least the
  threshold. All that hang together by pairs of similar ones are merged at once, then
  the means are compared again. A merged cluster keeps the number of its largest one.

  Args:
    products: [M, M] float32 inner products of what describes clients; a description of
      length 0 has a cosine of 0 with all others.
    old: [M] int32 clusters so far; K of clients in none.
    new: [M] bool, clients of none that begin as clusters of one.
    client_ids: [M] int32, so that the order of clients does not matter.
    num_clusters: K.
    threshold: tau.
  """
  count = len(old)
  rank = jnp.argsort(jnp.argsort(client_ids)).astype(jnp.int32)
  placed = old < num_clusters
  # While they merge, clusters go by the rank of their first client; `count` is none.
  first = jnp.full(num_clusters + 1, count).at[old].min(rank)
  label = jnp.where(placed, first[old], jnp.where(new, rank, count))

  def merge(loop):
    _, label = loop
    members = jax.nn.one_hot(label, count)
    sums = jnp.matmul(products, members, precision=_HIGHEST)
    sums = jnp.matmul(members.T, sums, precision=_HIGHEST)
    squares = jnp.diagonal(sums)
    lengths = jnp.sqrt(jnp.maximum(squares, 0.0))
    norms = lengths[:, None] * lengths[None]
    cosine = jnp.where(norms > 0, sums / jnp.where(norms > 0, norms, 1.0), 0.0)
    exist = members.max(axis=0) > 0
    similar = (cosine >= threshold) & exist[:, None] & exist[None]
    into = components(similar)
    return label, jnp.append(into, count)[label]

  nothing = jnp.full_like(label, -1)
  label = jax.lax.while_loop(_moving, merge, (nothing, label))[1]
  return _numbered(label, old, placed, num_clusters)


def _moving(loop: tuple[jax.Array, jax.Array]) -> jax.Array:
  return (loop[0] != loop[1]).any()


def components(linked: jax.Array) -> jax.Array:
  """[N] int32: the first node of each node's connected component.

  `linked` [N, N] bool is symmetric.
  """
  nodes = jnp.arange(len(linked), dtype=jnp.int32)

  def spread(loop):
    _, first = loop
    near = jnp.where(linked, first[None], len(linked)).min(axis=1)
    return first, jnp.minimum(first, near.astype(jnp.int32))

  return jax.lax.while_loop(_moving, spread, (nodes - 1, nodes))[1]


def _numbered(
  label: jax.Array, old: jax.Array, placed: jax.Array, num_clusters: int
) -> Merged:
  """Gives clusters the number of their largest old cluster, or else one not in use.

  `label` [M] int32 are clusters by the rank of their first client, M of none; `old` [M]
  int32 are the numbers so far, and `placed` [M] bool the clients that have one.
  """
  count = len(label)
  nodes = jnp.arange(count)
  sizes = jnp.zeros(num_clusters + 1, jnp.int32).at[old].add(placed)[:num_clusters]
  into = jnp.full(num_clusters + 1, count).at[old].min(label)[:num_clusters]
  held = jnp.where(into[:, None] == nodes[None], sizes[:, None], 0)  # [K, M]
  number, has = held.argmax(axis=0), held.max(axis=0) > 0
  exist = (label[:, None] == nodes[None]).any(axis=0)
  lacks = exist & ~has
  used = (
    jnp.zeros(num_clusters, bool)
    .at[jnp.where(has, number, num_clusters)]
    .set(True, mode='drop')
  )
  free = jnp.where(used, num_clusters, jnp.arange(num_clusters)).sort()
  given = free.at[jnp.cumsum(lacks) - 1].get(mode='fill', fill_value=num_clusters)
  number = jnp.where(lacks, given, number)
  fresh = (
    jnp.zeros(num_clusters, bool)
    .at[jnp.where(lacks, given, num_clusters)]
    .set(True, mode='drop')
  )
  own = jnp.append(number, num_clusters)[label].astype(jnp.int32)
  return Merged(own, fresh, exist.sum())
