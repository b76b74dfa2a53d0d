"""CFL-GP: clusters clients by gradients, averaged over rounds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import check_num_clusters, deployed
from fesem_jax.algorithms.common.cluster_averaging import (
  check_everyone,
  train_and_average,
)
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import prng_streams, sharding, traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.data.attacks import check_models_only
from fesem_jax.server.vector_clusters import add_to_means, clusters_of_gradients
from fesem_jax.training.client_losses import cohort_gradients
from fesem_jax.utils.ranges import Count

# The paper's P, rounds between two clusterings, and T_cl, the number of clusterings.
CLUSTER_EVERY, CLUSTER_UPDATES = 2, 5


class CflGpState(NamedTuple):
  centers: Params  # [K, ...] c_k
  assignment: jax.Array  # [M] int32 r_i
  gradients: Params  # [M, K, ...] g_ik, the mean of client i's gradients at model k
  counts: jax.Array  # [M, K] int32 number of gradients in this mean
  rounds: jax.Array  # [] int32 rounds done


@recorded
def cfl_gp(local: LocalTraining, *, num_clusters: Count = 4) -> Algorithm:
  """Builds CFL-GP with K = `num_clusters` centers (Kim et al., "Clustered Federated
  Learning via Gradient-based Partitioning", ICML 2024).

    in rounds 1, 3, 5, 7 and 9, with k = 1, 2, ..., K, 1, ... in turn:
      g_ik <- mean of grad F_i(c_k) of this and of earlier rounds   for all clients
      g_i  <- (g_i1, ..., g_iK);  G <- the matrix of columns g_i, U S V^T its SVD
      r    <- k-means of the columns of U_K^T G, K numbers for each client, numbered
              such that as few clients as possible move
    in every round:
      w_i  <- SGD from c_{r_i} on client i
      c_k  <- mean of w_i over the clients with r_i = k

  The K models start as different random models, all clients in cluster 0. All clients
  take part; one that drops out of a clustering round is clustered by earlier ones.
  """
  local.check_no_statistics('cfl_gp')

  def init(key, data):
    check_num_clusters(num_clusters, data)
    check_models_only(data, local, 'cfl_gp', 'gradients')
    draw_key, count = prng_streams.fold(key, prng_streams.DRAWS), data.num_clients
    centers = random_models(local, draw_key, num_clusters)
    gradients = jax.tree.map(lambda c: jnp.zeros((count, *c.shape)), centers)
    counts = jnp.zeros((count, num_clusters), jnp.int32)
    memory = sharding.split_clients((gradients, counts), local.mesh)
    first = jnp.zeros(count, jnp.int32)
    return CflGpState(centers, first, memory[0], memory[1], jnp.int32(0))

  def clustered(state, data, cohort, key, k):
    arrived = local.arrived(key, data, cohort.ids)
    model = tree.take(state.centers, k[None])
    new_gradients, _ = cohort_gradients(local, model, data, cohort, arrived)
    memory = add_to_means(state.gradients, state.counts, new_gradients, arrived, k)
    gradients, counts = sharding.split_clients(memory, local.mesh)
    ids = state.assignment, jnp.asarray(data.client_ids)
    clustering_key = prng_streams.fold(key, prng_streams.CLUSTERING)
    assignment = clusters_of_gradients(
      clustering_key, gradients, counts, *ids, local.mesh
    )
    return state._replace(assignment=assignment, gradients=gradients, counts=counts)

  def step(state, data, cohort, key):
    check_everyone(cohort, 'cfl_gp')
    turn, remainder = jnp.divmod(state.rounds, variable(CLUSTER_EVERY))
    due = (remainder == 0) & (turn < variable(CLUSTER_UPDATES))
    args = state, data, cohort, key, turn % num_clusters
    new = jax.lax.cond(due, lambda: clustered(*args), lambda: state)
    starts, before = deployed(new, data), state.assignment
    centers, _, info = train_and_average(
      local, starts, before, data, cohort, key, 'uniform'
    )
    return new._replace(centers=centers, rounds=state.rounds + 1), info

  sent = _traffic(local)
  return Algorithm(local, init, step, deployed, traffic=sent)


def _traffic(local: LocalTraining) -> traffic.Traffic:
  """A model and a gradient of it more in the rounds that cluster."""
  size = traffic.bytes_of_model(local)

  def round_costs(inputs, drawn):
    turn, remainder = divmod(drawn.number - 1, CLUSTER_EVERY)
    more = int(remainder == 0 and turn < CLUSTER_UPDATES)
    return traffic.Sent((1 + more) * size, (1 + more) * size, 3 * more)

  return traffic.Traffic(round_costs, model=size)
