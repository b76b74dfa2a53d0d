"""FedGWC: splits clusters by clients' losses in local training.

Licciardi et al., "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.centers import (
  deployed,
  reassigned,
  round_info,
  sizes_of,
)
from fesem_jax.algorithms.common.cluster_averaging import cluster_sums
from fesem_jax.core import batching, traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sums import mean_of, or_one
from fesem_jax.core.types import Params
from fesem_jax.server import spectral_splits
from fesem_jax.server.spectral_splits import MAX_CLUSTERS
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.one_client import for_each_batch
from fesem_jax.utils import processes
from fesem_jax.utils.ranges import Count, Positive

# Added to variances; a client alone in its cluster has none.
_LEAST_VARIANCE = 1e-12


class FedGwcState(NamedTuple):
  """State of FedGWC."""

  centers: Params  # [MAX_CLUSTERS, ...]; rows of clusters not yet made are unused
  assignment: jax.Array  # [M] int32
  num_clusters: jax.Array  # [] int32
  interactions: jax.Array  # [M, M] float32 P
  change: jax.Array  # [MAX_CLUSTERS] float32 e_k
  settled: jax.Array  # [MAX_CLUSTERS] int32 rounds in a row with e_k < eps
  steps: jax.Array  # [M] int32 local steps of a client


@recorded
def fed_gwc(
  local: LocalTraining,
  *,
  min_size: Count = 10,
  gwc_eps: Positive = 1e-5,
  gwc_gamma: Positive = 0.1,
) -> Algorithm:
  """Builds FedGWC.

    l_is <- loss of client i's local step s, from c_{r_i};  c_k as in FedAvg
    w_i  <- mean_s exp(-(l_is - m_s)^2 / (2 v_s))
    P_ij <- (1 - a_k) P_ij + a_k w_i / sum_j w_j     for i and j of cluster k
    e_k  <- (1 - a_k) e_k + a_k mean_ij (change of P_ij)^2
    if e_k < eps for M / S rounds in a row: cluster k's clients by rows of P

  over the S clients of the cohort. m_s and v_s are the mean and variance of l_is, by
  examples, over the clients of cluster k in the cohort; a_k is their share of the
  cluster. Rows of P are compared by exp(-gamma |P_i - P_j|^2) and clustered spectrally
  into the number of parts of least Davies-Bouldin index. There are at most 16 clusters.

  Args:
    min_size: least mean size of the parts of a cluster.
    gwc_eps: eps.
    gwc_gamma: gamma.
  """

  def init(key, data):
    count = data.num_clients
    return FedGwcState(
      centers=tree.repeat(local.model.init(key), MAX_CLUSTERS),
      assignment=jnp.zeros(count, jnp.int32),
      num_clusters=jnp.int32(1),
      interactions=jnp.full((count, count), 1 / len(data.info.names) ** 2),
      change=jnp.ones(MAX_CLUSTERS),
      settled=jnp.zeros(MAX_CLUSTERS, jnp.int32),
      steps=local.num_steps(data, jnp.arange(count)),
    )

  def update_client(client):
    start = client.received

    def local_step(t, trained, optimizer_state, gradient_of):
      model, losses = trained
      loss, grads = gradient_of(model)
      model, optimizer_state = client.descend(t, grads, optimizer_state, model)
      return (model, losses.at[t].set(loss)), optimizer_state, loss

    first = client.optimizer_state(start)
    trained = for_each_batch(client, (start, client.state), first, local_step)
    model, losses = trained.params
    model = trained.of(model)
    return model, client.send(model, start), losses

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    most = batching.most_steps(local.schedule, data.max_examples)
    no_losses = jnp.zeros((*cohort.ids.shape, most))
    reduction = cluster_sums(starts.shared, 'by_examples')
    trained = for_each_client(
      update_client, local, starts, data, cohort, key, reduction, state=no_losses
    )
    centers = mean_of(trained.sums.clients, state.centers)
    value, r = trained.sums.objective(state.centers, centers), state.assignment
    info = round_info(trained, MAX_CLUSTERS, value, r, r, data)
    weights = trained.weights('by_examples')[:, None]
    part = jax.nn.one_hot(starts.choice, MAX_CLUSTERS) * (weights > 0)  # [S, K]
    visited = (jnp.arange(most)[None] < trained.steps[:, None]) * weights
    share = part.sum(axis=0) / or_one(sizes_of(r, MAX_CLUSTERS, data))  # a_k
    rows = tree.rows_of(state.interactions, cohort)
    with jax.default_matmul_precision('highest'):
      rewards = _rewards(trained.state, visited, part)
      rows, change = _updated(rows, cohort.ids, rewards, part, share)
    change = (1 - share) * state.change + share * change
    settled = jnp.where(change < variable(gwc_eps), state.settled + 1, 0)
    settled = jnp.where(share > 0, settled, state.settled)
    drawn = jnp.maximum((data.sizes(cohort.ids) > 0).sum(), 1)
    ready = settled >= jnp.maximum(jnp.round(len(data.info.names) / drawn), 1)
    interactions = tree.with_rows(state.interactions, cohort, rows)
    state = state._replace(
      centers=centers, interactions=interactions, change=change, settled=settled
    )
    return state, info._replace(updates=(ready, data.sizes() > 0))

  def between(state, info):
    (ready, exists), info = processes.on_host(info.updates), info._replace(updates=None)
    if not ready.any():
      return state, info
    before, interactions = processes.on_host((state.assignment, state.interactions))
    after, count = spectral_splits.split_clusters(
      interactions, before, int(state.num_clusters), ready, exists,
      min_size=min_size, gamma=gwc_gamma,
    )  # fmt: skip
    parent = np.arange(MAX_CLUSTERS, dtype=np.int32)
    parent[after] = before
    state = FedGwcState(
      tree.take(state.centers, jnp.asarray(parent)), jnp.asarray(after),
      jnp.asarray(count), state.interactions, jnp.where(ready, 1.0, state.change),
      jnp.where(ready, 0, state.settled), state.steps,
    )  # fmt: skip
    return state, info._replace(clusters=reassigned(info.clusters, before, after))

  size = traffic.bytes_of_model(local)

  def round_costs(steps, drawn):
    return traffic.Sent(size, size + traffic.NUMBER * np.asarray(steps)[drawn.ids])

  sent = traffic.Traffic(
    round_costs,
    inputs=lambda state: state.steps,
    model=size,
    extras='losses of its steps',
  )
  return Algorithm(local, init, step, deployed, between, traffic=sent)


def _rewards(losses: jax.Array, weights: jax.Array, part: jax.Array) -> jax.Array:
  """[S] float32 mean rewards of losses [S, T], weights [S, T], clusters [S, K]."""
  total = or_one(jnp.einsum('sk,st->kt', part, weights))

  def mean(values):  # [S, T], that of each client's cluster
    means = jnp.einsum('sk,st->kt', part, weights * values) / total
    return jnp.einsum('sk,kt->st', part, means)

  squares = (losses - mean(losses)) ** 2
  values = jnp.exp(-squares / (2 * (mean(squares) + _LEAST_VARIANCE)))
  visited = weights > 0
  return jnp.where(visited, values, 0.0).sum(axis=1) / or_one(visited.sum(axis=1))


def _updated(
  rows: jax.Array, ids: jax.Array, reward: jax.Array, part: jax.Array, share: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The cohort's rows [S, M] of P after a round, and mean squared changes [K].

  `ids` [S] are positions of its clients, `part` [S, K] their clusters, 0 for those that
  do not count, and `share` [K] the new value's weight.
  """
  old = rows.at[:, ids].get(mode='fill', fill_value=0.0)
  together = jnp.einsum('sk,tk->st', part, part) > 0
  new_value = reward / or_one(part @ (reward @ part))
  rate = (part @ share)[:, None]
  change = jnp.where(together, rate * (new_value[:, None] - old), 0.0)
  pairs = or_one(part.sum(axis=0)) ** 2
  squares = (change**2).sum(axis=1) @ part
  return rows.at[:, ids].add(change, mode='drop'), squares / pairs
