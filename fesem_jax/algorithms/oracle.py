"""Oracle: FedAvg within each true group."""

from typing import Any, NamedTuple

from fesem_jax.algorithms.common.centers import round_info
from fesem_jax.algorithms.common.cluster_averaging import train_clusters
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.errors import UserError


class OracleState(NamedTuple):
  centers: Params  # [G, ...]
  server: Any = ()  # of the server optimizer


@recorded
def oracle(
  local: LocalTraining,
  *,
  weighting: Weighting = 'uniform',
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds the oracle, a reference: the gap to it is due to a method's clusters.

    w_i <- SGD from c_{g_i} on client i             for i in the cohort
    c_k <- mean of w_i over the clients with g_i = k

  g_i is the true group of client i. All centers start from one random model, as the
  global model of FedAvg does.

  Args:
    weighting: of the clients in a mean: 'uniform', as in FeSEM and IFCA, or
      'by_examples', as in FedAvg.
    server_optimizer: of each center; see `fed_opt`.

  Raises:
    UserError: `init`, on data without `groups`, which `data.with_true_groups` adds.
  """
  server_optimizer = server_optimizers.mask_batch_stats(
    server_optimizer, local.model.statistics
  )

  def init(key, data):
    centers = tree.repeat(local.model.init(key), _groups(data).count)
    server = server_optimizers.init(server_optimizer, centers, key)
    return OracleState(centers, server)

  def step(state, data, cohort, key):
    groups, starts = _groups(data), deployed(state, data).of(cohort)
    trained = train_clusters(local, starts, data, cohort, key, weighting)
    centers, server = server_optimizers.step(
      server_optimizer, state.server, state.centers, trained.sums.clients
    )
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, groups.count, value, groups.ids, groups.ids, data)
    return OracleState(centers, server), info

  def deployed(state, data):
    return ClientModels(state.centers, _groups(data).ids)

  return Algorithm(local, init, step, deployed)


def _groups(data: FederatedData) -> Groups:
  if data.groups is None:
    raise UserError('groups: missing; add them by data.with_true_groups')
  return data.groups
