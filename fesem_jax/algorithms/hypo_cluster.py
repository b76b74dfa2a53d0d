"""HypoCluster(K), also known as IFCA: each client picks the model with the lowest loss.

Mansour et al., "Three Approaches for Personalization with Applications to
Federated Learning", 2020 (HypCluster); Ghosh et al., "An Efficient Framework
for Clustered Federated Learning", NeurIPS 2020 (IFCA, Algorithm 1).
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.all_centers import all_centers_sent
from fesem_jax.algorithms.common.centers import check_num_clusters, round_info
from fesem_jax.algorithms.common.own_centers import train_from_own
from fesem_jax.algorithms.common.random_centers import RandomCenters, best_centers
from fesem_jax.algorithms.fed_sgd import one_gradient_step
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer, but_statistics
from fesem_jax.training.client_losses import least_loss
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.ranges import Count, Index


class HypoClusterState(NamedTuple):
  """State of HypoCluster."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32 what each client chose when it last took part
  rounds: jax.Array  # [] int32 rounds done
  server: Any = ()  # of the server optimizer


@recorded
def hypo_cluster(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  variant: Literal['model', 'gradient'] = 'model',
  weighting: Weighting = 'uniform',
  init_restarts: Count = 20,
  init_rounds: Index = 2,
  init_clients: Count = 24,
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds HypoCluster(K).

    r_i <- argmin_k F_i(c_k)                            for i in the cohort
    w_i <- SGD from c_{r_i} on client i
    c_k <- mean of w_i over the clients with r_i = k

  or, with `variant='gradient'` (option I of IFCA's Algorithm 1), gamma the local
  learning rate and m the clients of the round whose gradients arrived,

    c_k <- c_k - (gamma / m) * sum of grad F_i(c_k) over the clients with r_i = k

  The divisor is m and not the size of the cluster: a center that a share s of the
  clients chose takes a step of gamma * s along their mean gradient. In the paper all
  clients take part in every round; here m counts those that are drawn.

  Clients are assigned by their training examples, never by test ones. A client deploys
  the current center with the lowest training loss, drawn or not.

  Args:
    local: how clients train.
    num_clusters: K.
    variant: 'model' averages trained models, 'gradient' steps by gradients; see above.
    weighting: 'uniform' (IFCA) or 'by_examples' (HypCluster): n_i in place of 1 in
      means, sums and m.
    init_restarts: draws of the first centers, see `RandomCenters`; 1 in IFCA.
    init_rounds: rounds for which each draw is tried; 0 in IFCA.
    init_clients: clients that try them.
    server_optimizer: moves each center by a step along the mean change of its clients
      (FedOpt) instead of to their mean; draws are compared without it.
  """
  if variant == 'gradient':  # Centers take a part of their clients' mean step.
    local.check_no_statistics('hypo_cluster')
  server_optimizer = but_statistics(server_optimizer, local.model.statistics)
  start = RandomCenters(init_restarts, init_rounds, init_clients)
  given, local = local, one_gradient_step(local) if variant == 'gradient' else local

  def one_round(local, optimizer, centers, of_server, best, data, cohort, key):
    starts = ClientModels(centers, best)
    trained = train_from_own(local, starts, data, cohort, key, weighting)
    of_clusters = trained.sums.clients
    if variant == 'gradient':  # Divided by the weight of all clients of the round.
      weight = jnp.where(of_clusters.weight > 0, of_clusters.weight.sum(), 0.0)
      of_clusters = of_clusters._replace(weight=weight)
    return server_optimizers.step(optimizer, of_server, centers, of_clusters), trained

  def init(key, data, cohort=None):
    del cohort  # Every client chooses anew whenever it takes part.
    check_num_clusters(num_clusters, data)
    plain = local._replace(dropout_rate=0.0)

    def after_a_round(centers, sample, key):
      best = least_loss(plain, centers, data, sample)
      return one_round(plain, None, centers, (), best, data, sample, key)[0][0]

    centers = best_centers(local, data, key, num_clusters, start, after_a_round)
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

  def with_centers(state, centers, stays):
    server = server_optimizers.renew(server_optimizer, state.server, stays, centers)
    return state._replace(centers=centers, server=server)

  sent = all_centers_sent(local, num_clusters, variant, start)
  return Algorithm(given, init, step, deployed, with_centers=with_centers, traffic=sent)
