"""FedSoft: local models with proximal terms to all centers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.pulled import train_pulled
from fesem_jax.core import sharding, sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.example_losses import shares_of_least_loss
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.ranges import Count, NotNegative

# tau, rounds between two estimates of u_ik, and sigma, the least u_ik.
ESTIMATE_EVERY, LEAST_WEIGHT = 2, 1e-4


class FedSoftState(NamedTuple):
  centers: Params  # [K, ...] c_k
  client_params: Params  # [M, ...] w_i
  importance: jax.Array  # [M, K] float32 u_ik
  estimated: jax.Array  # [M] int32 rounds done when u_i was estimated
  rounds: jax.Array  # [] int32 rounds done


@recorded
def fed_soft(
  local: LocalTraining, *, num_clusters: Count = 4, soft_lambda: NotNegative = 0.1
) -> Algorithm:
  """Builds FedSoft with K centers (Ruan and Joe-Wong, "FedSoft: Soft Clustered
  Federated Learning with Proximal Local Updating", AAAI 2022: Algorithm 1).

    u_ik <- max(share of client i's examples on which c_k has the least loss, sigma)
            every second round
    w_i  <- SGD from w_i on F_i(w) + lambda / 2 sum_k u_ik |w - c_k|^2
    c_k  <- sum_i v_ik w_i                        v_ik = u_ik n_i / sum_j u_jk n_j

  The paper's selection of clients for each center is left out. A client estimates its u
  when it is drawn and its last estimate is two rounds old. It deploys w_i, and its
  cluster is the center of greatest u_ik. The reported training loss is F_i.

  Args:
    num_clusters: K.
    soft_lambda: lambda of the pull to all centers; 0 is NonFed.
  """

  def init(key, data):
    local.check_no_sends('fed_soft', 'models that did not start from a received one')
    first, *other_keys = jax.random.split(key, num_clusters + 1)
    start = local.model.init(first)
    even = jnp.full((data.num_clients, num_clusters), 1 / num_clusters)
    return FedSoftState(
      centers=jax.vmap(local.model.init)(jnp.stack(other_keys)),
      client_params=client_models.repeat(local, start, data.num_clients, 'stacked'),
      importance=sharding.split_clients(even, local.mesh),
      estimated=jnp.full(data.num_clients, -ESTIMATE_EVERY, jnp.int32),
      rounds=jnp.int32(0),
    )

  def estimate(state, data, cohort):
    old, last = tree.rows_of((state.importance, state.estimated), cohort)
    due = state.rounds - last >= ESTIMATE_EVERY

    def shares():
      estimated = shares_of_least_loss(local, state.centers, data, cohort)
      return tree.where(due, jnp.maximum(estimated, variable(LEAST_WEIGHT)), old)

    importance = jax.lax.cond(due.any(), shares, lambda: old)
    return {'importance': importance, 'estimated': jnp.where(due, state.rounds, last)}

  def train(local, state, data, cohort, key, reduction):
    starts = ClientModels(personal=state.client_params).of(cohort)
    pulls = tree.rows_of(state.importance, cohort)
    pull = pull_to_all(state.centers, pulls, soft_lambda)
    return train_pulled(local, starts, data, cohort, key, reduction, pull)

  def step(state, data, cohort, key):
    estimates = estimate(state, data, cohort)
    weights = estimates['importance'] * data.sizes(jnp.asarray(cohort.ids))[:, None]
    estimated = state._replace(
      importance=tree.with_rows(state.importance, cohort, estimates['importance'])
    )
    trained = train(local, estimated, data, cohort, key, Reduction(sent='personal'))
    state = client_models.updated(state, cohort, trained.took_part(), **estimates)
    return FedSoftState(
      means_of_all(trained, weights, state.centers, local.mesh),
      tree.with_rows(state.client_params, cohort, trained.params),
      state.importance,
      state.estimated,
      state.rounds + 1,
    ), trained.info()

  def deployed(state, data):
    return ClientModels(personal=state.client_params, membership=state.importance)

  sent = _traffic(local, num_clusters, ESTIMATE_EVERY)
  return Algorithm(local, init, step, deployed, train=train, traffic=sent)


def pull_to_all(
  centers: Params, pulls: jax.Array, strength: float
) -> tuple[Params, jax.Array] | None:
  """The pull m_i [S, ...], factor [S] equal to u_ik [S, K] to all centers, or None."""
  if not strength:
    return None
  total = pulls.sum(axis=1)
  shares = pulls / jnp.where(total > 0, total, 1.0)[:, None]
  return tree.mixtures(shares, centers), variable(strength / 2) * total


def means_of_all(
  trained: Trained, weights: jax.Array, centers: Params, mesh: Mesh | None
) -> Params:
  """[K, ...] means of kept models with weights [S, K], one center at a time."""
  weights = jnp.where(trained.took_part()[:, None], weights, 0.0)
  only = jnp.zeros(weights.shape[0], jnp.int32)

  def mean(k: int) -> Params:
    center = tree.take(centers, jnp.array([k]))
    return sums.weighted_mean(trained.params, only, weights[:, k], center, mesh)

  means = map(mean, range(weights.shape[1]))
  return jax.tree.map(lambda *rows: jnp.concatenate(rows), *means)


def _traffic(local: LocalTraining, num_clusters: int, every: int) -> traffic.Traffic:
  """K centers down, a model and K weights up; losses anew after `every` rounds."""
  size = traffic.bytes_of_model(local)

  def round_costs(inputs, drawn):
    estimated, rounds = inputs
    due = rounds - np.asarray(estimated)[drawn.ids] >= every
    passes = np.where(due, num_clusters, 0)
    up = size + num_clusters * traffic.NUMBER
    return traffic.Sent(num_clusters * size, up, passes)

  return traffic.Traffic(
    round_costs, inputs=lambda state: (state.estimated, state.rounds), model=size
  )
