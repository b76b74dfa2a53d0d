"""FedFew: K shared models that together serve all clients.

Guo et al., "Few-for-Many Personalized Federated Learning", CVPR 2026.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, learners
from fesem_jax.algorithms.common.centers import check_num_clusters, round_info
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.sums import ClusterSums, add_to_one, mean_of, no_sums, or_one, total
from fesem_jax.core.types import Params
from fesem_jax.training.client_losses import cohort_losses, least_loss
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.ranges import Count, Positive


class FedFewState(NamedTuple):
  """State of FedFew."""

  centers: Params  # [K, ...] c_k
  assignment: jax.Array  # [M] int32 model of least loss when client i last took part


@recorded
def fed_few(
  local: LocalTraining, *, num_clusters: Count = 3, few_mu: Positive = 0.01
) -> Algorithm:
  """Builds FedFew with K models.

    L_ik <- p_i F_i(c_k)                               for i in the cohort and all k
    S_i  <- sum_k exp(-L_ik / mu)
    w_ik <- SGD from c_k on F_i                        for all k
    c_k  <- c_k + sum_i a_i q_ik (w_ik - c_k)
    q_ik  = exp(-L_ik / mu) / S_i,  a_i = (1 / S_i) / sum_j 1 / S_j

  with p_i = n_i / n, which descends the smooth Tchebycheff set scalarization
  mu log sum_i 1 / S_i. A client deploys the model of least training loss. One whose
  losses are not finite, and a model whose training fails on it, do not count.

  Args:
    num_clusters: K.
    few_mu: mu; near 0, only the worst client counts, and only its best model.
  """

  def init(key, data):
    check_num_clusters(num_clusters, data)
    centers = random_models(local, key, num_clusters)
    return FedFewState(centers, least_loss(local, centers, data, everyone(data)))

  def update_client(client):
    model = local_sgd(client)
    return model, client.send(model, client.received), client.state

  def add(trained, starts, total):
    weights = jnp.where(trained.took_part(), trained.state, 0.0)
    return None, add_to_one(total, trained.params, weights, starts.shared)

  def train(centers, weights, data, cohort, key):
    def train_center(center_args):
      center, weight, key = center_args
      center = tree.expand(center)
      reduction = Reduction(add, no_sums(center), keep=False)
      starts = ClientModels(center)
      return for_each_client(
        update_client, local, starts, data, cohort, key, reduction, state=weight
      )

    keys = tree.repeat(key, num_clusters)
    return jax.lax.map(train_center, (centers, weights.T, keys))

  def step(state, data, cohort, key):
    losses = cohort_losses(local, state.centers, data, cohort)
    sizes = data.sizes(cohort.ids)
    counts = local.arrived(key, data, cohort.ids) & (sizes > 0)
    counts &= jnp.isfinite(losses).any(axis=1)
    shares = jnp.where(counts, sizes, 0).astype(jnp.float32)
    scaled = losses * (shares / or_one(total(shares)))[:, None]
    scaled = jnp.where(counts[:, None], scaled, 0.0)
    importance, match = importance_and_match(scaled, variable(few_mu), counts)
    trained = train(state.centers, importance[:, None] * match, data, cohort, key)
    moves = jax.tree.map(lambda x: x[:, 0], trained.sums.params)
    counted = jnp.where(trained.took_part(), importance, 0.0)  # [K, S]
    centers = mean_of(ClusterSums(moves, jax.vmap(total)(counted)), state.centers)
    clients = learners.sum_over_centers(trained)
    clients = clients._replace(loss=trained.loss.min(axis=0))
    before, best = state.assignment, losses.argmin(axis=1).astype(jnp.int32)
    took_part = clients.took_part()
    state = client_models.updated(state, cohort, took_part, assignment=best)
    info = round_info(clients, num_clusters, None, before, state.assignment, data)
    return state._replace(centers=centers), info

  def deployed(state, data):
    best = least_loss(local, state.centers, data, everyone(data))
    return ClientModels(state.centers, best)

  sent = learners.all_centers(local, num_clusters, numbers=num_clusters)
  return Algorithm(local, init, step, deployed, traffic=sent)


def importance_and_match(
  losses: jax.Array, mu: jax.Array | float, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The a_i [S] and q_ik [S, K] of losses [S, K]; 0 where not `counts` [S]."""
  log_sums = jax.nn.logsumexp(-losses / mu, axis=1)
  log_sums = jnp.where(counts, log_sums, jnp.inf)
  match = jnp.exp(-losses / mu - log_sums[:, None])
  return jnp.nan_to_num(jax.nn.softmax(-log_sums)), match
