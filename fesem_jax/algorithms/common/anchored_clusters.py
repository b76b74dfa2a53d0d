"""Clusters of clients by their gradients at one fixed model, which grow and merge."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.clustering.similar_clusters import merge_similar
from fesem_jax.clustering.update_directions import nearest_direction
from fesem_jax.cohorts.sampling import everyone
from fesem_jax.core import prng_streams, sharding, tree
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import weighted_mean
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training.client_losses import cohort_gradients


class AnchoredClusters(NamedTuple):
  """Clusters of the clients that have taken part.

  Attributes:
    assignment: [M] int32; K of clients that have yet to take part.
    joined: [M] bool, clients that have taken part.
    gradients: [M, ...] of their whole losses at the anchor; 0 of the others.
    anchor: [1, ...] a random model.
    sizes: [K] int32 clients of each cluster.
    count: [] int32 clusters; more than K if there was no place for some.
  """

  assignment: jax.Array
  joined: jax.Array
  gradients: Params
  anchor: Params
  sizes: jax.Array
  count: jax.Array

  @property
  def most(self) -> int:
    """K."""
    return self.sizes.shape[0]


def no_clusters(
  local: LocalTraining, data: FederatedData, key: jax.Array, most: int
) -> AnchoredClusters:
  """Nobody has taken part.

  Args:
    local: how clients train.
    data: training split.
    key: of the run's start.
    most: K.
  """
  anchor = tree.expand(local.model.init(prng_streams.fold(key, prng_streams.DRAWS)))
  zeros = jax.tree.map(lambda a: jnp.zeros((data.num_clients, *a.shape[1:])), anchor)
  return AnchoredClusters(
    assignment=jnp.full(data.num_clients, most, jnp.int32),
    joined=jnp.zeros(data.num_clients, bool),
    gradients=sharding.split_clients(zeros, local.mesh),
    anchor=anchor,
    sizes=jnp.zeros(most, jnp.int32),
    count=jnp.int32(0),
  )


def with_new_clients(
  local: LocalTraining,
  old: AnchoredClusters,
  data: FederatedData,
  cohort: Cohort,
  new: jax.Array,
  threshold: float | jax.Array,
) -> tuple[AnchoredClusters, jax.Array]:
  """Lets new clients begin clusters, and merges clusters; see `merge_similar`.

  Args:
    local: how clients train.
    old: the clusters so far.
    data: training split.
    cohort: S clients.
    new: [S] bool, those that take part for the first time. One whose gradient is not
      finite counts as having one of length 0.
    threshold: tau.

  Returns:
    The clusters, and [K] bool which of them have new clients alone.
  """
  found, _ = cohort_gradients(local, old.anchor, data, cohort, new)
  squares = tree.row_distances(found, tree.zeros_like(found))
  known = tree.rows_of(old.gradients, cohort)
  found = tree.where(new & jnp.isfinite(squares), found, known)
  gradients = tree.with_rows(old.gradients, cohort, found)
  new = tree.with_rows(jnp.zeros(data.num_clients, bool), cohort, new)
  products, new = sharding.on_all_devices(
    (inner_products(gradients, local.mesh), new), local.mesh
  )
  ids, most = jnp.asarray(data.client_ids), old.most
  merged = merge_similar(products, old.assignment, new, ids, most, threshold)
  own = merged.assignment
  sizes = jnp.zeros(most, jnp.int32).at[own].add(1, mode='drop')
  joined = old.joined | new
  clusters = AnchoredClusters(own, joined, gradients, old.anchor, sizes, merged.count)
  return clusters, merged.fresh


def most_similar(
  local: LocalTraining,
  clusters: AnchoredClusters,
  data: FederatedData,
  threshold: float | jax.Array,
) -> jax.Array:
  """The cluster that each of some clients would join.

  Args:
    local: how clients train.
    clusters: of clients that have taken part.
    data: training split of N clients, these or others.
    threshold: tau.

  Returns:
    [N] int32; K of clients whose cosine with the mean gradient of each cluster is less
    than the threshold.
  """
  anchor, everybody, most = clusters.anchor, everyone(data), clusters.most
  found, _ = cohort_gradients(local, anchor, data, everybody, data.sizes() > 0)
  zeros = tree.repeat(tree.unstack(tree.zeros_like(anchor), 0), most)
  own = jnp.minimum(clusters.assignment, most - 1)
  weights = clusters.joined.astype(jnp.float32)
  means = weighted_mean(clusters.gradients, own, weights, zeros, local.mesh)
  return nearest_direction(found, means, threshold)
