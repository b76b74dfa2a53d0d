"""StoCFL: merges clusters that change one fixed model similarly."""

import functools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common import anchored_clusters, global_model
from fesem_jax.algorithms.common.centers import round_info
from fesem_jax.algorithms.common.cluster_averaging import cluster_sums
from fesem_jax.algorithms.common.global_model import Averaging, GlobalState
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Params
from fesem_jax.data.attacks import check_models_only
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.training.local_sgd import local_sgd, toward
from fesem_jax.training.one_client import Client, LocalModel
from fesem_jax.utils.ranges import NotNegative, Range

ANCHOR_EPOCHS = 10  # Local epochs of g_i.


class StocflState(NamedTuple):
  centers: Params  # [K + 1, ...] c_1, ..., c_K of clusters, and last the global w
  clusters: anchored_clusters.AnchoredClusters  # r_i, g_i and a

  @property
  def params(self) -> Params:
    return jax.tree.map(lambda c: c[-1:], self.centers)


@recorded
def stocfl(
  local: LocalTraining,
  *,
  stocfl_tau: Annotated[float, Range(-1, 1)] = 0.5,
  stocfl_lambda: NotNegative = 0.05,
) -> Algorithm:
  """Builds StoCFL (Zeng et al., "Stochastic Clustered Federated Learning", 2023).

  In each round, clients of the cohort that take part for the first time send

    g_i  <- a - 10 epochs of SGD from a         a random model a, the same for good

  and become clusters of one, whose c_k starts as w. While two clusters have
  cos(mean g_i, mean g_j) >= tau over their clients, they merge; the larger one's c_k
  stays. Then, for all clients of the cohort,

    u_i  <- SGD from w on F_i
    v_i  <- SGD from c_{r_i} on F_i(v) + lambda / 2 |v - w|^2       w as it was sent
    w    <- mean of u_i;  c_k <- mean of v_i over r_i = k

  A client that has yet to take part deploys the c_k of the most similar cluster; w, if
  none is as similar as tau. The reported training loss is that of v_i.

  Args:
    stocfl_tau: tau, the least cosine of two clusters that are merged.
    stocfl_lambda: lambda of the pull to the global model; 0 is none.
  """
  local.check_no_statistics('stocfl')
  rule = anchored_clusters.Rule(local, ANCHOR_EPOCHS, stocfl_tau)

  def init(key, data):
    check_models_only(data, local, 'stocfl', 'gradients')
    most = len(data.info.names)
    clusters = anchored_clusters.no_clusters(local, data, key, most)
    return StocflState(tree.repeat(local.model.init(key), most + 1), clusters)

  def merged(state, *args):
    clusters, fresh = anchored_clusters.with_new_clients(rule, state.clusters, *args)
    begin = jnp.append(fresh, False)
    return StocflState(tree.where(begin, state.params, state.centers), clusters)

  def train(local, state, data, cohort, key, reduction):
    starts = ClientModels(state.centers, state.clusters.assignment).of(cohort)
    args = local, starts, data, cohort, key, reduction
    pulled = functools.partial(_pulled, stocfl_lambda)
    return for_each_client(pulled, *args) if stocfl_lambda else train_cohort(*args)

  def step(state, data, cohort, key):
    before = state.clusters.assignment
    joins = local.arrived(key, data, cohort.ids) & (data.sizes(cohort.ids) > 0)
    joins &= ~tree.rows_of(state.clusters.joined, cohort)
    args = state, data, cohort, joins, key
    state = jax.lax.cond(joins.any(), lambda: merged(*args), lambda: state)
    shared, trained_shared = global_model.train_and_average(
      local, GlobalState(state.params), data, cohort, key, Averaging('uniform')
    )
    reduction = cluster_sums(state.centers, 'uniform')
    trained = train(local, state, data, cohort, key, reduction)
    centers = mean_of(trained.sums.clients, state.centers)
    value = trained.sums.objective(state.centers, centers)
    count, both = state.clusters.most + 1, trained.together_with(trained_shared)
    info = round_info(both, count, value, before, state.clusters.assignment, data)
    centers = jax.tree.map(lambda c, w: c.at[-1:].set(w), centers, shared.params)
    return state._replace(centers=centers), info

  def similar(state, data):
    return anchored_clusters.most_similar(rule, state.clusters, data)

  def deployed(state, data):
    assignment = state.clusters.assignment
    late = ~state.clusters.joined & (data.sizes() > 0)
    choice = jax.lax.cond(late.any(), lambda: similar(state, data), lambda: assignment)
    return ClientModels(state.centers, jnp.where(late, choice, assignment))

  def unseen_models(state, data):
    return ClientModels(state.centers, similar(state, data))

  return Algorithm(
    local, init, step, deployed, train=train, traffic=_traffic(local),
    unseen_models=unseen_models,
  )  # fmt: skip


def _traffic(local: LocalTraining) -> traffic.Traffic:
  """Two models each way, and a third and its change for clients that join."""
  size = traffic.bytes_of_model(local)

  def round_costs(joined, drawn):
    late = ~joined[drawn.ids]
    num_bytes = np.where(late, 3 * size, 2 * size)
    return traffic.Sent(num_bytes, num_bytes, np.where(late, 3 * ANCHOR_EPOCHS, 0))

  return traffic.Traffic(
    round_costs, inputs=lambda state: state.clusters.joined, model=size
  )


def _pulled(stocfl_lambda: float, client: Client) -> tuple[LocalModel, Params, None]:
  pull = toward(tree.unstack(client.models.shared, -1), variable(stocfl_lambda / 2))
  model = local_sgd(client, pull)
  return model, client.send(model, client.received), None
