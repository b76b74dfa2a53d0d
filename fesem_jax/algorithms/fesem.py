"""FeSEM: multi-center federated learning by stochastic EM.

Long et al., "Multi-center federated learning: clients clustering for better
personalization", World Wide Web 2022: Algorithm 1 with the initialization of
Section 6.1.4. Symbols: W_i `client_params`, W~(k) `centers`, r_i `assignment`,
lambda `prox_lambda`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import (
  check_num_clusters,
  deployed,
  round_info,
  storage_for_models,
)
from fesem_jax.algorithms.common.em_steps import assign, penalty
from fesem_jax.algorithms.common.first_by_loss import train_and_choose
from fesem_jax.algorithms.common.first_clusters import (
  MAX_INITIAL_CLIENTS,
  Clustering,
  initial_training,
  random_starts,
  train_and_cluster,
)
from fesem_jax.core import offloading, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Params
from fesem_jax.server import em, robust
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.comparison import build as build_comparison
from fesem_jax.server.optimizers import ServerOptimizer, mask_batch_stats
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.privacy import check_noised
from fesem_jax.training.trained import Reduction, Weighting
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Index, NotNegative


class FesemState(NamedTuple):
  centers: Params  # [K, ...] W~(k)
  assignment: jax.Array  # [M] int32 r_i
  client_params: Any  # [M, ...] last W_i, which no step reads; None if streamed
  rounds: jax.Array  # [] int32 rounds done
  server: Any = ()  # state of the server optimizer


@recorded
def fesem(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  prox_lambda: NotNegative = 0.01,
  prox_weighting: Literal['uniform', 'paper'] = 'uniform',
  cluster_on: str = 'all',
  weighting: Weighting = 'uniform',
  aggregation: str = 'mean',
  server_optimizer: ServerOptimizer = None,
  track_objective: bool = False,
  init_models: Literal['common', 'random', 'by_loss'] = 'common',
  init_epochs: Count = 1,
  init_restarts: Count = 20,
  init_clients: Index = 0,
  client_state: Literal['stacked', 'streamed', 'offloaded'] = 'stacked',
) -> Algorithm:
  """Builds FeSEM(K).

    local   W_i   <- SGD from W~(r_i) on F_i(W) + lambda |W - W~(r_i)|^2    (Eq. 7)
    E-step  r_i   <- argmin_k |W_i - W~(k)|^2                               (Eq. 8)
    M-step  W~(k) <- mean of W_i over the clients with r_i = k              (Eq. 9)

  `init` does the first E-step and M-step, and a round is local training, E-step,
  M-step: the order of the paper's Algorithm 1, E, M, local, E, M, local, ...

  A client outside the cohort keeps its assignment and deploys the current value of
  its center. Local training stays near the center from which it starts, so a wrong
  assignment can persist; `algorithms.wrappers` has remedies beyond the paper.

  Args:
    num_clusters: K.
    prox_lambda: lambda; the paper does not state its value.
    prox_weighting: the factor in Eq. 7: 'uniform' is lambda for all clients; 'paper' is
      lambda / (m alpha_i), for m clients and the share alpha_i of client i's examples.
    cluster_on: parameters that the E-step compares: 'all', a layer ('logits': the
      authors' code), patterns ('*/lora_a,*/lora_b'), or 'matched' (FeSEM-MA).
    weighting: weights of clients in Eq. 6 and 9.
    aggregation: replaces the mean of Eq. 9; see `robust.aggregation`.
    server_optimizer: moves each center along the mean change of its clients' models.
    track_objective: whether to also report Eq. 6 after training and after the E-step.
    init_models: where local training before the first clustering starts: one 'common'
      random model (the paper) or a 'random' model for each client. With 'by_loss', a
      client trains K random models and joins the best one.
    init_epochs: local epochs before the first clustering.
    init_restarts: restarts of the first clustering, by k-means; the best one is kept.
    init_clients: number of random clients that the first k-means sees, 0 for all; at
      most `MAX_INITIAL_CLIENTS` unless `client_state` is 'stacked'.
    client_state: where W_i of all clients are kept: 'stacked' on the devices,
      'offloaded' in host memory; 'streamed' keeps none.
  """
  aggregate = robust.aggregation(aggregation)
  optimizer = mask_batch_stats(server_optimizer, local.model.statistics)
  comparison = build_comparison(cluster_on, local.model)
  stacked, streamed = client_state == 'stacked', client_state == 'streamed'
  check(stacked or not aggregate, 'aggregation: needs client_state=stacked')
  check(stacked or init_models == 'common', 'init_models: needs client_state=stacked')
  check_noised(local, None, keeps_models=aggregate is not None)
  aggregates_matched = comparison.align is not None and aggregate is not None
  if not stacked:
    init_clients = min(init_clients or MAX_INITIAL_CLIENTS, MAX_INITIAL_CLIENTS)

  def init(key, data):
    check_num_clusters(num_clusters, data)
    cohort, storage = everyone(data), None
    start_local = initial_training(local, init_epochs)
    if init_models == 'by_loss':
      first = train_and_choose(start_local, data, cohort, key, num_clusters, weighting)
    else:
      starts = random_starts(local, data, key, init_models)
      if client_state == 'offloaded':
        model = tree.unstack(starts.shared, 0)
        storage = offloading.repeat(model, data.num_clients, local.mesh)
      clustering = Clustering(
        init_restarts, weighting=weighting, comparison=comparison,
        max_clients=init_clients, keep=not streamed, into=storage,
      )  # fmt: skip
      first = train_and_cluster(
        start_local, starts, data, cohort, key, num_clusters, clustering
      )
    centers, client_params = first.centers, first.trained.params
    if aggregate is not None:
      took_part, assignment = first.trained.took_part(), first.assignment
      centers = aggregate(first.models, assignment, took_part, centers, local.mesh)
    if storage is not None and not offloading.is_offloaded(client_params):
      client_params = tree.put(storage, cohort.ids, client_params)
    server = server_optimizers.init(optimizer, centers, key)
    return FesemState(centers, first.assignment, client_params, jnp.int32(0), server)

  def local_update(local, state, data, cohort, key, reduction):
    starts = ClientModels(state.centers, tree.rows_of(state.assignment, cohort))
    factor = penalty(prox_lambda, prox_weighting, data, cohort)  # Eq. 7
    return train_cohort(local, starts, data, cohort, key, reduction, penalty=factor)

  def e_step(chunk, starts, sums, broadcast):  # Eq. 8
    assignment, distance, models = assign(comparison, chunk, starts, *broadcast)
    centers, trained = starts.shared, chunk._replace(params=models)
    sums = sums.add_start_distances(trained, starts.choice, weighting, centers)
    sums = sums.add(trained, assignment, distance, weighting, centers)
    return (assignment, models if aggregates_matched else None), sums

  def m_step(trained, assignment, state):
    sums = trained.sums.clients
    if aggregate is None:
      means = mean_of(sums, state.centers)  # Eq. 9
    else:
      models = trained.folded[1] if aggregates_matched else trained.params
      took_part = trained.took_part()
      means = aggregate(models, assignment, took_part, state.centers, local.mesh)
    return server_optimizers.move(
      optimizer, state.server, state.centers, means, sums.weight > 0
    )

  def step(state, data, cohort, key):
    zeros = em.Sums.zeros(state.centers, track_objective)
    prepared = comparison.prepare(comparison.part(state.centers))
    reduction = Reduction(
      e_step,  # Runs on each chunk of clients once it has trained.
      zeros,
      broadcast=(prepared, cohort.keep_clusters),
      keep=not streamed,
      into=storage_for_models(state, cohort, client_state, local.mesh),
    )
    trained = local_update(local, state, data, cohort, key, reduction)
    previous = tree.rows_of(state.assignment, cohort)
    cohort_assignment = jnp.where(trained.took_part(), trained.folded[0], previous)
    centers, server = m_step(trained, cohort_assignment, state)
    assignment = tree.with_rows(state.assignment, cohort, cohort_assignment)
    objective = trained.sums.objective(state.centers, centers)
    info = round_info(
      trained, num_clusters, objective, state.assignment, assignment, data,
      trained.sums.objective_parts(),
    )  # fmt: skip
    client_params = tree.with_rows(state.client_params, cohort, trained.params)
    rounds = state.rounds + 1
    return FesemState(centers, assignment, client_params, rounds, server), info

  def with_centers(state, centers, unchanged):
    server = server_optimizers.renew(optimizer, state.server, unchanged, centers)
    return state._replace(centers=centers, server=server)

  messages = traffic.after_clustering(
    traffic.one_model(local),
    common=init_models == 'common',
    choices=num_clusters if init_models == 'by_loss' else 0,
  )
  return Algorithm(
    local, init, step, deployed, train=local_update, with_centers=with_centers,
    traffic=messages,
  )  # fmt: skip
