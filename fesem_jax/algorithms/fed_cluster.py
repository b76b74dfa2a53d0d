"""FedCluster: clustered federated learning by recursive bipartition."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common import cluster_averaging
from fesem_jax.algorithms.common.bipartition import Linkage, split_clusters
from fesem_jax.algorithms.common.centers import (
  MAX_CLUSTERS,
  deployed,
  reassigned,
  round_info,
)
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.server import em
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Range


class FedClusterState(NamedTuple):
  centers: Params  # [max_clusters, ...]; rows of clusters not yet made are unused
  assignment: jax.Array  # [M] int32
  num_clusters: jax.Array  # [] int32
  rounds: jax.Array  # [] int32 rounds done


@recorded
def fed_cluster(
  local: LocalTraining,
  *,
  max_clusters: Annotated[int, Range(1, MAX_CLUSTERS)] = 16,
  eps1: float = 0.4,
  eps2: float = 0.8,
  gamma: float = 0.13,
  min_size: int = 2,
  linkage: Linkage = 'complete',
  min_rounds: int = 5,
  check_every: Count = 5,
) -> Algorithm:
  """Builds FedCluster (Sattler et al., "Clustered Federated Learning: Model-Agnostic
  Distributed Multitask Optimization under Privacy Constraints", IEEE TNNLS 2020).

    w_i <- SGD from c_{r_i} on client i;  u_i = w_i - c_{r_i}
    c_k <- sum_i alpha_i w_i over the clients with r_i = k
    on check rounds, for each cluster k of more than `min_size` clients: if
        |sum_i alpha_i u_i| < eps1 max_i |u_i|   and   max_i |u_i| > eps2,
      part it in two by the cosine similarities s_ij of the u_i, and keep the
      parts if sqrt((1 - max s_ij across them) / 2) > gamma; both go on from c_k

  with alpha_i = n_i / sum n_j over the clients of the cluster. The host decides splits,
  `between` rounds. All clients take part in every round.

  Args:
    max_clusters: maximum number of clusters.
    eps1: a cluster whose mean update is this small, relative to the largest, has
      converged.
    eps2: clients whose updates are this large (L2 norm) have not converged.
    gamma: least separation of the two parts.
    min_size: clusters of this many clients or fewer are not split.
    linkage: 'complete', 'average', or 'single', the paper's.
    min_rounds: number of first rounds without a check.
    check_every: rounds between checks.
  """
  local.check_no_statistics('fed_cluster')

  def init(key, data):
    count = len(data.info.names)
    check(min_size < count, f'min_size: must be below the {count} clients; lower it')
    start = local.model.init(key)
    return FedClusterState(
      centers=tree.repeat(start, max_clusters),
      assignment=jnp.zeros(data.num_clients, jnp.int32),
      num_clusters=jnp.int32(1),
      rounds=jnp.int32(0),
    )

  def is_check(rounds, min_rounds=min_rounds, check_every=check_every):
    return (rounds > min_rounds) & (rounds % check_every == 0)

  def add(trained, starts, total):
    start = starts.params(trained.ids.shape[0])
    distance = tree.row_distances(trained.params, start)
    updates = jax.tree.map(jnp.subtract, trained.params, start)
    return updates, total.add(
      trained, starts.choice, distance, 'by_examples', starts.shared
    )

  def step(state, data, cohort, key):
    cluster_averaging.check_everyone(cohort, 'fed_cluster')
    assignment, rounds = state.assignment, state.rounds + 1
    starts = deployed(state, data).of(cohort)
    reduction = Reduction(add, em.Sums.zeros(state.centers), keep=False)
    trained = train_cohort(local, starts, data, cohort, key, reduction)
    centers = sums.mean_of(trained.sums.clients, state.centers)
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, max_clusters, value, assignment, assignment, data)
    products = jax.lax.cond(
      is_check(rounds, variable(min_rounds), variable(check_every)),
      lambda: inner_products(trained.folded, local.mesh),
      lambda: jnp.zeros((data.num_clients,) * 2),
    )
    state = FedClusterState(centers, assignment, state.num_clusters, rounds)
    return state, info._replace(updates=(products, trained.weights('by_examples')))

  def between(state, info):
    updates, info = info.updates, info._replace(updates=None)
    if not is_check(int(state.rounds)):
      return state, info
    products, weights, before = processes.on_host((*updates, state.assignment))
    after, count = split_clusters(
      products, weights, before, int(state.num_clusters), max_clusters=max_clusters,
      eps1=eps1, eps2=eps2, gamma=gamma, min_size=min_size, linkage=linkage,
    )  # fmt: skip
    parent = np.arange(max_clusters, dtype=np.int32)
    parent[after] = before
    centers = tree.take(state.centers, jnp.asarray(parent))
    clusters = reassigned(info.clusters, before, after)
    state = FedClusterState(
      centers, jnp.asarray(after), jnp.asarray(count), state.rounds
    )
    return state, info._replace(clusters=clusters)

  return Algorithm(local, init, step, deployed, between)
