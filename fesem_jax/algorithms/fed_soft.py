"""FedSoft: local models with proximal terms to all centers, weighted by their fit.

Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local
Updating", AAAI 2022: Algorithm 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import own_models
from fesem_jax.algorithms.common.pulled import train_pulled
from fesem_jax.algorithms.common.soft_clusters import (
  all_centers_and_weights,
  draw_for_centers,
  means_of_all,
  pull_to_all,
  without,
)
from fesem_jax.core import sharding, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.example_losses import shares_of_least_loss
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.ranges import Count, Index, NotNegative, Share


class FedSoftState(NamedTuple):
  """State of FedSoft."""

  centers: Params  # [K, ...] c_k
  client_params: Params  # [M, ...] w_i
  importance: jax.Array  # [M, K] float32 u_ik
  estimated: jax.Array  # [M] int32 rounds done when u_i was estimated
  rounds: jax.Array  # [] int32 rounds done


@recorded
def fed_soft(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  soft_lambda: NotNegative = 0.1,
  importance_every: Count = 2,
  importance_floor: Share = 1e-4,
  clients_per_center: Index = 0,
) -> Algorithm:
  """Builds FedSoft with K centers.

    u_ik <- max(share of client i's examples on which c_k has the least loss, sigma)
            every tau rounds
    w_i  <- SGD from w_i on F_i(w) + lambda / 2 sum_k u_ik |w - c_k|^2
    c_k  <- sum_i v_ik w_i                        v_ik = u_ik n_i / sum_j u_jk n_j

  With selection, clients are drawn for each center from the round's clients, in
  proportion to u_ik n_i without replacement; those drawn for any center train, and a
  center becomes the plain mean of those drawn for it.

  A client that is drawn in a round estimates its u if that of its last estimate is tau
  rounds old: with all clients in every round, all do every tau rounds. A client deploys
  w_i, and its cluster is the center of greatest u_ik. Centers start as random models,
  all w_i as another one. The reported training loss is F_i.

  Args:
    local: how clients train.
    num_clusters: K.
    soft_lambda: lambda of the pull to all centers; 0 is NonFed.
    importance_every: tau, rounds between two estimates of v_ik.
    importance_floor: sigma, the least weight of a center for a client.
    clients_per_center: clients drawn for each center; 0 draws none: all of the round
      train, and count by v_ik.

  Raises:
    UserError: when it starts, on `sends`.
  """

  def init(key, data):
    local.check_no_sends('fed_soft', 'models that did not start from a received one')
    first, *others = jax.random.split(key, num_clusters + 1)
    start = local.model.init(first)
    even = jnp.full((data.num_clients, num_clusters), 1 / num_clusters)
    return FedSoftState(
      centers=jax.vmap(local.model.init)(jnp.stack(others)),
      client_params=own_models.repeat(local, start, data.num_clients, 'stacked'),
      importance=sharding.split_clients(even, local.mesh),
      estimated=jnp.full(data.num_clients, -importance_every, jnp.int32),
      rounds=jnp.int32(0),
    )

  def estimate(state, data, cohort):
    old, last = tree.rows_of((state.importance, state.estimated), cohort)
    due = state.rounds - last >= importance_every

    def shares():
      estimated = shares_of_least_loss(local, state.centers, data, cohort)
      return tree.where(due, jnp.maximum(estimated, variable(importance_floor)), old)

    importance = jax.lax.cond(due.any(), shares, lambda: old)
    return {'importance': importance, 'estimated': jnp.where(due, state.rounds, last)}

  def train(local, state, data, cohort, key, reduction):
    starts = ClientModels(own=state.client_params).of(cohort)
    pulls = tree.rows_of(state.importance, cohort)
    pull = pull_to_all(state.centers, pulls, soft_lambda)
    return train_pulled(local, starts, data, cohort, key, reduction, pull)

  def step(state, data, cohort, key):
    estimates, chosen = estimate(state, data, cohort), cohort
    weights = estimates['importance'] * data.sizes(jnp.asarray(cohort.ids))[:, None]
    if clients_per_center:
      weights = draw_for_centers(key, data, cohort, weights, clients_per_center)
      chosen = without(cohort, ~weights.any(axis=1), data)
    here = jnp.asarray(chosen.ids) == jnp.asarray(cohort.ids)
    now = state._replace(
      importance=tree.with_rows(state.importance, cohort, estimates['importance'])
    )
    trained = train(local, now, data, chosen, key, Reduction(sent='own'))
    # Those that were not drawn have told their u, and send no model.
    state = own_models.kept(state, cohort, trained.took_part() | ~here, **estimates)
    trained = trained._replace(
      ids=jnp.asarray(cohort.ids), arrived=trained.arrived & here
    )
    return FedSoftState(
      means_of_all(trained, weights, state.centers, local.mesh),
      tree.with_rows(state.client_params, chosen, trained.params),
      state.importance,
      state.estimated,
      state.rounds + 1,
    ), trained.info()

  def deployed(state, data):
    return ClientModels(own=state.client_params, membership=state.importance)

  sent = all_centers_and_weights(local, num_clusters, importance_every)
  return Algorithm(local, init, step, deployed, train=train, traffic=sent)
