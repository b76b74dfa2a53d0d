"""CLoVE: clusters clients by their losses on all models."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.centers import check_num_clusters, round_info
from fesem_jax.algorithms.common.cluster_averaging import train_clusters
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import prng_streams, sharding, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone, first_at_random
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.silhouette import clusters_of_best_number
from fesem_jax.server.vector_clusters import clusters_of_vectors, match_clusters
from fesem_jax.training.client_losses import cohort_losses, start_by_loss
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count


class CloveState(NamedTuple):
  centers: Params  # [K, ...] c_k
  assignment: jax.Array  # [M] int32 r_i when client i last took part; K before that
  rounds: jax.Array  # [] int32 rounds done in which clients took part

  @property
  def joined(self) -> jax.Array:
    return self.assignment < jax.tree.leaves(self.centers)[0].shape[0]


@recorded
def clove(
  local: LocalTraining, *, num_clusters: Count = 4, choose_num_clusters: bool = False
) -> Algorithm:
  """Builds CLoVE (Bhatia et al., "CLoVE: Personalized Federated Learning through
  Clustering of Loss Vector Embeddings", ICML 2026).

    L_ik <- F_i(c_k)                                 for i in the cohort and all k
    C_1, ..., C_K <- k-means of the rows of L
    pi   <- argmin over permutations of sum_j sum_{i in C_j} L_{i, pi(j)}
    r_i  <- pi(j)                                    for i in C_j
    w_i  <- SGD from c_{r_i} on client i
    c_k  <- sum_i alpha_i w_i over the clients with r_i = k

  with alpha_i = n_i / sum n_j over these clients. In the first round r_i are random,
  and every model gets a client. A client that never took part deploys the model of
  least training loss; one with a loss that is not finite starts from it.

  Args:
    num_clusters: K, the number of models.
    choose_num_clusters: whether the number of clusters is unknown: from 2 to K of them
      are made in each round, by `silhouette.clusters_of_best_number`.
  """
  enough = num_clusters > 1 or not choose_num_clusters
  check(enough, 'num_clusters: must be at least 2 with choose_num_clusters')

  def init(key, data):
    check_num_clusters(num_clusters, data)
    draws = prng_streams.fold(key, prng_streams.DRAWS)
    centers = random_models(local, draws, num_clusters)
    no_cluster = jnp.full(data.num_clients, num_clusters, jnp.int32)
    return CloveState(centers, no_cluster, jnp.int32(0))

  def assign(state, data, cohort, key):
    def cluster_by_loss():
      args = local, state.centers, data, cohort, key, choose_num_clusters
      return clusters_by_loss(*args)

    arguments = num_clusters, data, cohort, key
    assign_at_random = functools.partial(clusters_at_random, *arguments)
    return jax.lax.cond(state.rounds == 0, assign_at_random, cluster_by_loss)

  def step(state, data, cohort, key):
    assignment = assign(state, data, cohort, key)
    starts = ClientModels(state.centers, assignment)
    trained = train_clusters(local, starts, data, cohort, key, 'by_examples')
    centers = mean_of(trained.sums.clients, state.centers)
    took_part = trained.took_part()
    state_after = client_models.updated(state, cohort, took_part, assignment=assignment)
    assignment = state_after.assignment
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, num_clusters, value, state.assignment, assignment, data)
    rounds = state.rounds + (info.trained > 0)  # The first one is that of some clients.
    return CloveState(centers, assignment, rounds), info

  def deployed(state, data):
    return ClientModels(
      state.centers, _last_clusters(local, state, data, everyone(data))
    )

  sent = _traffic(local, num_clusters)
  return Algorithm(local, init, step, deployed, traffic=sent)


def clusters_by_loss(
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  choose_number: bool,
) -> jax.Array:
  """[S] int32 model of each client: clusters of loss vectors, matched to the models.

  Those that drop out, or have losses that are not finite, get the model of least loss.
  """
  losses = cohort_losses(local, models, data, cohort)
  arrived = local.arrived(key, data, cohort.ids)
  exists = (data.sizes(cohort.ids) > 0) & arrived & jnp.isfinite(losses).all(axis=1)
  # A number for each client and model: small enough to be whole on every device.
  losses, exists = sharding.on_all_devices((losses, exists), local.mesh)
  ids = jnp.asarray(data.client_ids).at[cohort.ids].get(mode='clip')
  clustering_key = prng_streams.fold(key, prng_streams.CLUSTERING)
  matched = cluster_and_match(clustering_key, losses, exists, ids, choose_number)
  return jnp.where(exists, matched, losses.argmin(axis=1)).astype(jnp.int32)


def cluster_and_match(
  key: jax.Array,
  losses: jax.Array,
  exists: jax.Array,
  client_ids: jax.Array,
  choose_number: bool = False,
) -> jax.Array:
  """K-means of losses [S, K], then the matching of clusters to models of least loss."""
  losses = jnp.where(exists[:, None], losses, 0.0)
  if choose_number:
    cluster = clusters_of_best_number(losses, exists, client_ids, losses.shape[1])
  else:
    cluster = clusters_of_vectors(key, losses, exists, client_ids, losses.shape[1])
  return match_clusters(cluster, exists, losses)


def clusters_at_random(
  num_models: int, data: FederatedData, cohort: Cohort, key: jax.Array
) -> jax.Array:
  """[S] int32: a random model for each client, and a client for each of K models."""

  def draw(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (), 0, num_models)

  shuffle_key = prng_streams.fold(key, prng_streams.SHUFFLE)
  models = jax.vmap(draw)(data.keys_of(shuffle_key, cohort.ids))
  keys = data.keys_of(prng_streams.fold(key, prng_streams.DRAWS), cohort.ids)
  first = first_at_random(keys, data.sizes(cohort.ids) > 0, num_models)
  return models.at[first].set(jnp.arange(len(first), dtype=jnp.int32))


def _last_clusters(
  local: LocalTraining, state: Any, data: Any, cohort: Any
) -> jax.Array:
  """[S] int32 clusters as they are; by loss of clients that never took part."""
  joined, assignment = tree.rows_of((state.joined, state.assignment), cohort)
  assignment = jnp.where(joined, assignment, 0)
  late = ~joined & (data.sizes(cohort.ids) > 0)
  return start_by_loss(local, state.centers, assignment, late, data, cohort)


def _traffic(local: LocalTraining, num_clusters: int) -> traffic.Traffic:
  """Models and a cluster's number down, losses and a model up; first a model each."""
  size = traffic.bytes_of_model(local)
  down = num_clusters * size + traffic.NUMBER
  up = size + num_clusters * traffic.NUMBER

  def round_costs(inputs, drawn):
    if drawn.number == 1:
      return traffic.Sent(size, size)
    return traffic.Sent(down, up, num_clusters)

  return traffic.Traffic(round_costs, model=size, extras='losses of models')
