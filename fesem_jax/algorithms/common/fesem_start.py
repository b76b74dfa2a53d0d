"""FeSEM before its first round: the clustering of Section 6.1.4, and other starts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.aggregation.robust import Aggregate
from fesem_jax.algorithms.common.centers import check_num_clusters
from fesem_jax.algorithms.common.first_clusters import (
  MAX_INITIAL_CLIENTS,
  before_rounds,
  random_start,
  train_and_cluster,
)
from fesem_jax.clustering import em
from fesem_jax.clustering.comparison import Comparison
from fesem_jax.cohorts.sampling import everyone, sample_clients, shuffled
from fesem_jax.core import offloading, prng_streams, tree
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import FederatedData, Params


class FesemStart(NamedTuple):
  """What FeSEM's first round goes on from.

  Attributes:
    centers: [K, ...].
    assignment: [M] int32; K of clients that have yet to join.
    client_params: [M, ...], or None if they are not kept.
    seen: [M] int32, 0, or -1 of clients that have yet to join.
  """

  centers: Params
  assignment: jax.Array
  client_params: Params
  seen: jax.Array


def start_fesem(
  local: LocalTraining,
  data: FederatedData,
  key: jax.Array,
  num_clusters: int,
  *,
  weighting: str,
  comparison: Comparison,
  aggregate: Aggregate | None,
  init_models: str,
  init_epochs: int,
  init_restarts: int,
  init_seeding: str,
  init_clients: int,
  init_shuffle: float,
  late_joins: bool,
  client_state: str,
) -> FesemStart:
  """Clients train, are clustered, and give the first centers; options as in `fesem`.

  Args:
    local: how clients train.
    data: training split.
    key: of the start.
    num_clusters: K.
    weighting: see `fesem`, as the other options.
    comparison: what of the models is compared and averaged.
    aggregate: what stands in for the mean of a cluster; None is the mean.
    init_models: see `random_start`.
    init_epochs: local epochs before the clustering.
    init_restarts: of k-means.
    init_seeding: of k-means.
    init_clients: random clients whose models are clustered, or who take part.
    init_shuffle: probability that a client is put into a random cluster.
    late_joins: whether only `init_clients` clients take part.
    client_state: whether and where the models of all clients are kept.

  Raises:
    UserError: if there are more clusters than clients.
  """
  check_num_clusters(num_clusters, data)
  most, count = init_clients, data.num_clients
  if client_state != 'stacked':
    most = min(most or MAX_INITIAL_CLIENTS, MAX_INITIAL_CLIENTS)
  starts, cohort = random_start(local, data, key, init_models), everyone(data)
  if late_joins:
    first = prng_streams.fold(key, prng_streams.SAMPLE)
    cohort = sample_clients(first, data, init_clients, local.mesh)
  stack = None
  if client_state == 'offloaded':
    stack = offloading.repeat(tree.unstack(starts.shared, 0), count, local.mesh)
  found = train_and_cluster(
    before_rounds(local, init_epochs),
    starts,
    data,
    cohort,
    key,
    num_clusters,
    restarts=init_restarts,
    seeding=init_seeding,
    weighting=weighting,
    comparison=comparison,
    max_clients=most,
    keep=client_state != 'streamed',
    into=tree.rows_of(stack, cohort),
  )
  trained, assignment, centers = found.trained, found.assignment, found.centers
  if init_shuffle:
    assignment = shuffled(key, data, cohort, assignment, num_clusters, init_shuffle)
    weights = trained.weights(weighting)
    centers = em.m_step(found.models, assignment, weights, centers, local.mesh)
  if aggregate is not None:
    counts = trained.took_part()
    centers = aggregate(found.models, assignment, counts, centers, local.mesh)
  client_params = trained.params
  if late_joins and client_state == 'stacked':
    client_params = tree.with_rows(starts.params(count), cohort, client_params)
  if stack is not None and not (
    cohort.everyone and offloading.is_offloaded(client_params)
  ):
    client_params = tree.put(stack, cohort.ids, client_params)
  unassigned, never = jnp.full(count, num_clusters), jnp.full(count, -1, jnp.int32)
  return FesemStart(
    centers,
    tree.with_rows(unassigned.astype(jnp.int32), cohort, assignment),
    client_params,
    tree.with_rows(never, cohort, jnp.zeros(cohort.ids.shape, jnp.int32)),
  )
