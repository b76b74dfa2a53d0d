"""HypoCluster(K), or IFCA: clients choose the center of lowest loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import check_num_clusters, round_info
from fesem_jax.algorithms.common.cluster_averaging import train_clusters
from fesem_jax.algorithms.common.random_centers import best_centers
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer, mask_batch_stats
from fesem_jax.training.client_losses import least_loss
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.ranges import Count, Index


class HypoClusterState(NamedTuple):
  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32 what each client chose when it last took part
  rounds: jax.Array  # [] int32 rounds done
  server: Any = ()  # of the server optimizer


@recorded
def hypo_cluster(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  weighting: Weighting = 'uniform',
  init_restarts: Count = 1,
  init_rounds: Index = 0,
  init_clients: Count = 24,
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds HypoCluster(K) (Mansour et al., "Three Approaches for Personalization with
  Applications to Federated Learning", 2020: HypCluster; Ghosh et al., "An Efficient
  Framework for Clustered Federated Learning", NeurIPS 2020: IFCA, Algorithm 1).

    r_i <- argmin_k F_i(c_k)                            for i in the cohort
    w_i <- SGD from c_{r_i} on client i
    c_k <- mean of w_i over the clients with r_i = k

  Clients are assigned by their training examples, never by test ones. A client deploys
  the current center with the lowest training loss, drawn or not.

  Args:
    num_clusters: K.
    weighting: 'uniform' (IFCA) or 'by_examples' (HypCluster).
    init_restarts: number of draws of the first centers; 20 find better ones.
    init_rounds: trial rounds of each draw; with several draws, 2 are better.
    init_clients: number of clients in the trial rounds.
    server_optimizer: moves each center by a step along the mean change of its clients
      (FedOpt) instead of to their mean; draws are compared without it.
  """
  server_optimizer = mask_batch_stats(server_optimizer, local.model.statistics)

  def one_round(local, optimizer, centers, server_state, best, data, cohort, key):
    starts = ClientModels(centers, best)
    trained = train_clusters(local, starts, data, cohort, key, weighting)
    after = server_optimizers.step(
      optimizer, server_state, centers, trained.sums.clients
    )
    return after, trained

  def init(key, data):
    check_num_clusters(num_clusters, data)
    plain = local._replace(dropout_rate=0.0)

    def run_round(centers, sample, key):
      best = least_loss(plain, centers, data, sample)
      return one_round(plain, None, centers, (), best, data, sample, key)[0][0]

    centers = best_centers(
      local, data, key, num_clusters, run_round, restarts=init_restarts,
      rounds=init_rounds, num_clients=init_clients,
    )  # fmt: skip
    assignment = least_loss(local, centers, data, everyone(data))
    server = server_optimizers.init(server_optimizer, centers, key)
    return HypoClusterState(centers, assignment, jnp.int32(0), server)

  def step(state, data, cohort, key):
    old = tree.rows_of(state.assignment, cohort)
    best = least_loss(local, state.centers, data, cohort)
    if cohort.keep_clusters is not None:
      best = jnp.where(cohort.keep_clusters, old, best)
    (centers, server), trained = one_round(
      local, server_optimizer, state.centers, state.server, best, data, cohort, key
    )
    new = jnp.where(trained.took_part(), best, old)
    assignment = tree.with_rows(state.assignment, cohort, new)
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, num_clusters, value, state.assignment, assignment, data)
    return HypoClusterState(centers, assignment, state.rounds + 1, server), info

  def deployed(state, data):
    best = least_loss(local, state.centers, data, everyone(data))
    return ClientModels(state.centers, best)

  def with_centers(state, centers, unchanged):
    server = server_optimizers.renew(server_optimizer, state.server, unchanged, centers)
    return state._replace(centers=centers, server=server)

  sent = _traffic(local, num_clusters, init_restarts, init_rounds, init_clients)
  return Algorithm(local, init, step, deployed, with_centers=with_centers, traffic=sent)


def _traffic(
  local: LocalTraining, num_clusters: int, restarts: int, rounds: int, clients: int
) -> traffic.Traffic:
  """Clients receive all centers; the trials of the first centers come before."""
  size = traffic.bytes_of_model(local)
  all_centers, answer = num_clusters * size, size + traffic.NUMBER

  def round_costs(inputs, drawn):
    if drawn.keep_clusters:
      return traffic.Sent(size, answer)
    return traffic.Sent(all_centers, answer, num_clusters)

  compares = restarts > 1

  def starters(num_clients):
    return restarts * min(clients, num_clients)

  def start_bytes(num_clients):
    times = starters(num_clients)
    down = times * (rounds + compares) * all_centers
    return down, times * (rounds * answer + compares * traffic.NUMBER)

  return traffic.Traffic(
    round_costs,
    start_bytes,
    model=size,
    extras=f'the number of its cluster{", losses of first centers" * compares}',
    models_before=restarts * rounds,
    starters=starters,
  )
