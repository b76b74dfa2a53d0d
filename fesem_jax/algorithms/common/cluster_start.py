"""First clusters of a method: the clustering of Section 6.1.4."""

import dataclasses
from typing import NamedTuple

import jax

from fesem_jax.algorithms.common.centers import check_num_clusters
from fesem_jax.algorithms.common.em_steps import EMSteps
from fesem_jax.algorithms.common.first_by_loss import train_and_choose
from fesem_jax.algorithms.common.first_clusters import (
  MAX_INITIAL_CLIENTS,
  Clustering,
  before_rounds,
  random_start,
  train_and_cluster,
)
from fesem_jax.core import offloading, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params


@dataclasses.dataclass(frozen=True)
class ClusterStart:
  """How the first clusters are made: short training, then k-means.

  Attributes:
    models: clients train from one 'common' random model (the paper), or each from a
      'random' one; 'by_loss': see `first_by_loss`, without k-means.
    epochs: local epochs of that training.
    restarts: restarts of k-means; the best one is kept.
    clients: random clients that k-means sees; 0 is all, or `MAX_INITIAL_CLIENTS` where
      the models are not all on the devices.
  """

  models: str = 'common'
  epochs: int = 1
  restarts: int = 20
  clients: int = 0


class FirstClusters(NamedTuple):
  """Where the first round goes on from."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32
  client_params: Params  # [M, ...], or None if they are not kept


def first_clusters(
  local: LocalTraining,
  data: FederatedData,
  key: jax.Array,
  num_clusters: int,
  start: ClusterStart,
  steps: EMSteps,
  client_state: str,
) -> FirstClusters:
  """The first clusters and centers; `UserError` on fewer clients than clusters."""
  check_num_clusters(num_clusters, data)
  most, count = start.clients, data.num_clients
  if client_state != 'stacked':
    most = min(most or MAX_INITIAL_CLIENTS, MAX_INITIAL_CLIENTS)
  starts = random_start(local, data, key, start.models)
  cohort = everyone(data)
  stack = None
  if client_state == 'offloaded':
    stack = offloading.repeat(tree.unstack(starts.shared, 0), count, local.mesh)
  shortly, weighting = before_rounds(local, start.epochs), steps.m_step.weighting
  if start.models == 'by_loss':
    clusters = train_and_choose(shortly, data, cohort, key, num_clusters, weighting)
  else:
    clusters = train_and_cluster(
      shortly,
      starts,
      data,
      cohort,
      key,
      num_clusters,
      Clustering(
        restarts=start.restarts,
        weighting=weighting,
        comparison=steps.compare,
        max_clients=most,
        keep=client_state != 'streamed',
        into=stack,
      ),
    )
  trained, centers = clusters.trained, clusters.centers
  rule, counts = steps.m_step.aggregation, trained.took_part()
  if rule is not None:
    centers = rule(clusters.models, clusters.assignment, counts, centers, local.mesh)
  client_params = trained.params
  if stack is not None and not offloading.is_offloaded(client_params):
    client_params = tree.put(stack, cohort.ids, client_params)
  return FirstClusters(centers, clusters.assignment, client_params)
