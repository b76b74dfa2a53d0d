"""FedGroup: clusters clients once, by directions of first updates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import check_num_clusters, deployed
from fesem_jax.algorithms.common.cluster_averaging import step_of_fixed_clusters
from fesem_jax.algorithms.common.first_clusters import initial_training
from fesem_jax.core import prng_streams, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import all_or_sample, everyone
from fesem_jax.core.types import Params
from fesem_jax.server import em
from fesem_jax.server.vector_clusters import clusters_of_directions, nearest_direction
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.ranges import Count


class FedGroupState(NamedTuple):
  centers: Params  # [K, ...] c_k
  assignment: jax.Array  # [M] int32 r_i, fixed after the start
  start: Params  # [1, ...] w, from which clients are compared
  directions: Params  # [K, ...] d_k; 0 for a group without clients at the start


@recorded
def fed_group(local: LocalTraining, *, num_clusters: Count = 4) -> Algorithm:
  """Builds FedGroup with K = `num_clusters` (Duan et al., "FedGroup: Efficient
  Clustered Federated Learning via Decomposed Data-Driven Measure", 2020).

    once:  D_i  <- one epoch of SGD from w, less w              for 20 K random clients
           V    <- the first K left singular vectors of the matrix of columns D_i
           E_ik <- cos(D_i, V_k);  r <- k-means of the rows of E
           c_k  <- w + d_k;  d_k <- mean of D_i over r_i = k
           r_i  <- argmax_k cos(D_i, d_k)                       for all other clients
    round: w_i  <- SGD from c_{r_i} on client i
           c_k  <- sum_i alpha_i w_i over the clients with r_i = k

  with alpha_i = n_i / sum n_j over the clients of the center.
  """
  local.check_no_statistics('fed_group')
  start_local = initial_training(local, 1)

  def nearest(trained, starts, total, directions):
    return nearest_direction(_updates(trained, starts), directions), total

  def placed(start, directions, data, key):
    reduction = Reduction(nearest, (), directions, keep=False)
    starts, all_clients = ClientModels(start), everyone(data)
    trained = train_cohort(start_local, starts, data, all_clients, key, reduction)
    return jnp.where(data.sizes() > 0, trained.folded, 0).astype(jnp.int32)

  def init(key, data):
    check_num_clusters(num_clusters, data)
    starts = ClientModels(tree.expand(local.model.init(key)))
    local_key = prng_streams.fold(key, prng_streams.LOCAL)
    cohort = all_or_sample(key, data, 20 * num_clusters, local.mesh)
    trained = train_cohort(start_local, starts, data, cohort, local_key)
    clustering_key = prng_streams.fold(key, prng_streams.CLUSTERING)
    changes = _updates(trained, starts), trained.took_part()
    ids = jnp.asarray(data.client_ids).at[cohort.ids].get(mode='clip')
    args = clustering_key, *changes, ids, num_clusters, local.mesh
    cluster, counts = clusters_of_directions(*args)
    origins = tree.repeat(tree.unstack(starts.shared, 0), num_clusters)
    weights = counts.astype(jnp.float32)
    centers = em.m_step(trained.params, cluster, weights, origins, local.mesh)
    directions = jax.tree.map(jnp.subtract, centers, origins)
    assignment = jnp.zeros(data.num_clients, jnp.int32)
    if not cohort.everyone:
      assignment = placed(starts.shared, directions, data, local_key)
    places = jnp.where(counts, cohort.ids, data.num_clients)
    assignment = tree.put(assignment, places, cluster)
    return FedGroupState(centers, assignment, starts.shared, directions)

  def unseen_models(state, data):
    assignment = placed(state.start, state.directions, data, jax.random.key(0))
    return ClientModels(state.centers, assignment)

  sent = traffic.after_clustering(traffic.one_model(local))
  sent = sent._replace(extras=None)  # A second model, to find the nearest group.
  step = step_of_fixed_clusters(local)
  return Algorithm(
    local, init, step, deployed, traffic=sent, unseen_models=unseen_models
  )


def _updates(trained: Trained, starts: ClientModels) -> Params:
  """[S, ...] D_i, from the model that all clients start from."""
  return jax.tree.map(jnp.subtract, trained.params, starts.shared)
