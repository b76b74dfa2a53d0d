"""FeSEM: multi-center federated learning by stochastic EM.

Long et al., "Multi-center federated learning: clients clustering for better
personalization", World Wide Web 2022: Algorithm 1 with the initialization of
Section 6.1.4. Symbols: W_i `client_params`, W~(k) `centers`, r_i `assignment`,
lambda `prox_lambda`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import deployed, room_for_models, round_info
from fesem_jax.algorithms.common.cluster_start import ClusterStart, first_clusters
from fesem_jax.algorithms.common.em_steps import EMSteps, MStep, Penalty
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.server import comparison, robust
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.privacy import check_reduced
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Index, NotNegative


class FesemState(NamedTuple):
  """State of FeSEM."""

  centers: Params  # [K, ...] W~(k)
  assignment: jax.Array  # [M] int32 r_i
  client_params: Any  # [M, ...] W_i after its last training; None if streamed
  rounds: jax.Array  # [] int32 rounds done
  server: Any = ()  # of the server optimizer


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

    local   W_i   <- SGD from W~(r_i) on L_i(W) + lambda |W - W~(r_i)|^2    (Eq. 7)
    E-step  r_i   <- argmin_k |W_i - W~(k)|^2                               (Eq. 8)
    M-step  W~(k) <- mean of W_i over the clients with r_i = k              (Eq. 9)

  `init` does the first E-step and M-step, and a round is local training, E-step,
  M-step: the order of the paper's Algorithm 1, E, M, local, E, M, local, ...

  A client that is not drawn keeps its assignment and deploys the current value of
  that center. A client stays near the center that it starts from, so a wrong
  assignment can persist; `wrappers` has remedies beyond the paper.

  Args:
    local: how clients train.
    num_clusters: K.
    prox_lambda: lambda, whose value the paper does not state; see `Penalty`.
    prox_weighting: 'uniform' or 'paper', lambda / (m alpha_i).
    cluster_on: what is compared with the centers: 'all' parameters; those of a layer,
      e.g. 'logits', as in the authors' code, or of patterns separated by commas, e.g.
      '*/lora_a,*/lora_b'; or 'matched', which is FeSEM-MA (Section 5.1).
    weighting: of clients in Eq. 6 and 9.
    aggregation: in place of the mean of Eq. 9; see `robust.aggregation`.
    server_optimizer: moves each center by a step along the mean change of its clients.
    track_objective: whether rounds report Eq. 6 after each step.
    init_models: 'common', 'random' or 'by_loss', how the first clusters are made; see
      `ClusterStart`.
    init_epochs: local epochs before the first clustering.
    init_restarts: restarts of the k-means of the start; the best one is kept.
    init_clients: random clients whose models this k-means sees; 0 is all.
    client_state: 'stacked' keeps W_i of all clients, M * P numbers, on the devices,
      'offloaded' in the memory of their host; 'streamed' keeps none. The last two need
      only the chunk's, the centers and the start's on the devices.

  Raises:
    UserError: on options that exclude each other.
  """
  rule = robust.aggregation(aggregation)
  m_step = MStep(weighting, rule, server_optimizer, track_objective)
  m_step = m_step.mask_batch_stats(local.model.statistics)
  start = ClusterStart(init_models, init_epochs, init_restarts, init_clients)
  stacked = client_state == 'stacked'
  check(stacked or rule is None, 'client_state: aggregation needs stacked')
  check(stacked or init_models == 'common', 'client_state: init_models needs stacked')
  check_reduced(local, None, kept=rule is not None)
  steps = EMSteps(m_step, comparison.build(cluster_on, local.model))
  penalty = Penalty(prox_lambda, prox_weighting)
  return _built(local, num_clusters, penalty, steps, start, client_state)


def _built(
  local: LocalTraining,
  num_clusters: int,
  penalty: Penalty,
  steps: EMSteps,
  start: ClusterStart,
  client_state: str,
) -> Algorithm:
  """The method, of its parts."""
  m_step = steps.m_step
  matched = steps.compare.align is not None
  robust_means_of_matched = matched and m_step.aggregation is not None

  def init(key, data):
    first = first_clusters(local, data, key, num_clusters, start, steps, client_state)
    server = server_optimizers.init(m_step.server_optimizer, first.centers, key)
    return FesemState(*first, jnp.int32(0), server)

  def train(local, state, data, cohort, key, reduction):
    starts = ClientModels(state.centers, tree.rows_of(state.assignment, cohort))
    return train_cohort(
      local, starts, data, cohort, key, reduction,
      penalty=penalty.of(data, cohort),  # Eq. 7
    )  # fmt: skip

  def assign_and_sum(chunk, starts, sums, known):
    assigned = steps.nearest(chunk, starts, known)  # Eq. 8
    sums = steps.add(sums, chunk, starts, assigned)  # Eq. 9: sums for the means
    models = assigned.models if robust_means_of_matched else None
    return (assigned.cluster, models), sums

  def step(state, data, cohort, key):
    # Local training from the centers; both steps follow as each chunk finishes.
    reduction = steps.reduction(state.centers, cohort.keep_clusters)._replace(
      fold=assign_and_sum,
      keep=client_state != 'streamed',
      into=room_for_models(state, cohort, client_state, local.mesh),
    )
    trained = train(local, state, data, cohort, key, reduction)
    old = tree.rows_of(state.assignment, cohort)
    new = jnp.where(trained.took_part(), trained.folded[0], old)
    centers, server = steps.centers(
      trained, new, state.centers, state.server, local.mesh
    )
    assignment = tree.with_rows(state.assignment, cohort, new)
    value = trained.sums.objective(state.centers, centers)
    info = round_info(
      trained, num_clusters, value, state.assignment, assignment, data,
      trained.sums.by_step(),
    )  # fmt: skip
    client_params = tree.with_rows(state.client_params, cohort, trained.params)
    rounds = state.rounds + 1
    return FesemState(centers, assignment, client_params, rounds, server), info

  def with_centers(state, centers, unchanged):
    server = server_optimizers.renew(
      m_step.server_optimizer, state.server, unchanged, centers
    )
    return state._replace(centers=centers, server=server)

  sent = _traffic(local, num_clusters, start)
  return Algorithm(
    local, init, step, deployed, train=train, with_centers=with_centers, traffic=sent,
  )  # fmt: skip


def _traffic(
  local: LocalTraining, num_clusters: int, start: ClusterStart
) -> traffic.Traffic:
  """Each client's center and its model, after the first clustering."""
  return traffic.after_clustering(
    traffic.one_model(local),
    common=start.models == 'common',
    choices=num_clusters if start.models == 'by_loss' else 0,
  )
