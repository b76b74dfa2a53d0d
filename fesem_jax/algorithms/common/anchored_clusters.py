"""StoCFL's clusters of clients, by their updates from one fixed model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.first_clusters import initial_training
from fesem_jax.algorithms.common.similar_clusters import merge_similar
from fesem_jax.core import prng_streams, sharding, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.core.sums import weighted_mean
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.vector_clusters import nearest_direction
from fesem_jax.training.cohort import train_cohort


class Rule(NamedTuple):
  local: LocalTraining
  epochs: int  # local epochs from the anchor, whose change describes a client
  threshold: float  # tau, the least cosine of clusters that merge

  def describe(
    self, anchor: Params, data: FederatedData, cohort: Cohort, key: jax.Array
  ) -> Params:
    """[S, ...] change of each client from the anchor [1, ...]; 0 if not finite."""
    start_local = initial_training(self.local, self.epochs)
    key = prng_streams.fold(key, prng_streams.FIRST_COHORT)
    trained = train_cohort(start_local, ClientModels(anchor), data, cohort, key)
    return jax.tree.map(jnp.subtract, anchor, trained.params)


class AnchoredClusters(NamedTuple):
  assignment: jax.Array  # [M] int32; K of clients that have yet to join
  joined: jax.Array  # [M] bool, clients that are in a cluster
  gradients: Params  # [M, ...] what describes clients; 0 of those that have yet to join
  anchor: Params  # [1, ...] a random model
  sizes: jax.Array  # [K] int32 clients of each cluster

  @property
  def most(self) -> int:
    return self.sizes.shape[0]


def no_clusters(
  local: LocalTraining, data: FederatedData, key: jax.Array, most: int
) -> AnchoredClusters:
  """No clusters yet, with room for K = `most`, and a random anchor."""
  anchor = tree.expand(local.model.init(prng_streams.fold(key, prng_streams.DRAWS)))
  zeros = jax.tree.map(lambda a: jnp.zeros((data.num_clients, *a.shape[1:])), anchor)
  return AnchoredClusters(
    assignment=jnp.full(data.num_clients, most, jnp.int32),
    joined=jnp.zeros(data.num_clients, bool),
    gradients=sharding.split_clients(zeros, local.mesh),
    anchor=anchor,
    sizes=jnp.zeros(most, jnp.int32),
  )


def with_new_clients(
  rule: Rule,
  old: AnchoredClusters,
  data: FederatedData,
  cohort: Cohort,
  new: jax.Array,
  key: jax.Array,
) -> tuple[AnchoredClusters, jax.Array]:
  """Clusters with the new clients [S] bool, and which [K] bool have only such."""
  mesh, most = rule.local.mesh, old.most
  descriptions = rule.describe(old.anchor, data, cohort, key)
  squares = tree.row_distances(descriptions, tree.zeros_like(descriptions))
  new &= (squares > 0) & jnp.isfinite(squares)
  descriptions = tree.where(new, descriptions, tree.rows_of(old.gradients, cohort))
  gradients = tree.with_rows(old.gradients, cohort, descriptions)
  new = tree.with_rows(jnp.zeros(data.num_clients, bool), cohort, new)
  products = inner_products(gradients, mesh), new
  products, new = sharding.on_all_devices(products, mesh)
  ids, threshold = jnp.asarray(data.client_ids), variable(rule.threshold)
  merged = merge_similar(products, old.assignment, new, ids, most, threshold)
  assignment, joined = merged.assignment, old.joined | new
  sizes = jnp.zeros(most, jnp.int32).at[assignment].add(1, mode='drop')
  clusters = AnchoredClusters(assignment, joined, gradients, old.anchor, sizes)
  return clusters, merged.fresh


def most_similar(
  rule: Rule, clusters: AnchoredClusters, data: FederatedData
) -> jax.Array:
  """[N] int32 most similar cluster of each client; K below the threshold."""
  anchor, most, key = clusters.anchor, clusters.most, jax.random.key(0)
  descriptions = rule.describe(anchor, data, everyone(data), key)
  zeros = tree.repeat(tree.unstack(tree.zeros_like(anchor), 0), most)
  assignment = jnp.minimum(clusters.assignment, most - 1)
  weights = clusters.joined.astype(jnp.float32)
  means = weighted_mean(clusters.gradients, assignment, weights, zeros, rule.local.mesh)
  return nearest_direction(descriptions, means, variable(rule.threshold))
