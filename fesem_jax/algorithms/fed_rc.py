"""FedRC: FedEM, corrected for the centers' label distributions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common import client_models, learners
from fesem_jax.algorithms.common.learners import deployed
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import sharding, traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Cohort, Params
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.training.example_losses import example_losses, example_targets
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count

# The least share of a class among a center's examples.
FLOOR = 1e-8


class FedRcState(NamedTuple):
  centers: Params  # [K, ...] c_k
  mixture: jax.Array  # [M, K] float32 pi_i as of when each client last took part
  classes: jax.Array  # [M, K, L] float32 sum of q_s(k) over the client's s of class y


@recorded
def fed_rc(local: LocalTraining, *, num_clusters: Count = 4) -> Algorithm:
  """Builds FedRC with K = `num_clusters` centers (Guo et al., "FedRC: Tackling Diverse
  Distribution Shifts Challenge in Federated Learning by Robust Clustering", ICML 2024).

    q_s(k) <- pi_ik exp(-l(c_k; s)) / C_ky / sum_j (the same)      for s of client i
    C_ky   <- sum of q_s(k) over all s of class y / sum of q_s(k) over all s
    pi_ik  <- mean_s q_s(k)
    w_ik   <- SGD from c_k on mean_s q_s(k) l(w; s)                for all k
    c_k    <- sum_i alpha_i w_ik                                   alpha_i = n_i / n

  This is `fed_em` with the likelihood divided by C, so that a center gains nothing from
  many examples of one class. C uses the q of each client's last participation and is at
  least 1e-8; in the first round it is equal for all centers.

  Raises:
    UserError: if the task is not classification.
  """
  task = local.model.task.name
  check(task == CLASSIFICATION.name, f'task: fed_rc needs a classification, not {task}')

  def init(key, data):
    centers = random_models(local, key, num_clusters)
    shape = data.num_clients, num_clusters
    weights = jnp.full(shape, 1 / num_clusters), jnp.zeros((*shape, data.num_classes))
    return FedRcState(centers, *sharding.split_clients(weights, local.mesh))

  def step(state, data, cohort, key):
    mixture = tree.rows_of(state.mixture, cohort)
    classes = example_targets(local, data, cohort)
    log_shares = tree.take(jnp.log(shares_of_classes(state.classes)).T, classes)
    losses = example_losses(local, state.centers, data, cohort)
    log_odds = -losses - jnp.moveaxis(log_shares, 2, 1)
    shares = learners.responsibilities(mixture, log_odds)
    centers, trained = learners.train(
      local, state.centers, shares, data, cohort, key, 'by_examples'
    )
    rows = {
      'mixture': learners.mixture_of(shares, data, cohort),
      'classes': sums_of_classes(shares, classes, data, cohort),
    }
    state = client_models.updated(state, cohort, trained.took_part(), **rows)
    return state._replace(centers=centers), trained.info()

  return Algorithm(local, init, step, deployed, traffic=_traffic(local, num_clusters))


def shares_of_classes(classes: jax.Array) -> jax.Array:
  """[K, L] float32: C_ky, at least `FLOOR`, of all clients' sums [M, K, L]."""
  total = classes.sum(axis=0)
  center_total = total.sum(axis=1, keepdims=True)
  return jnp.maximum(total / jnp.where(center_total > 0, center_total, 1.0), FLOOR)


def sums_of_classes(
  shares: jax.Array, classes: jax.Array, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S, K, L] float32: the sums of q [S, K, N_max] over the examples of each class."""
  shares = jnp.where(learners.exist(data, cohort)[:, None], shares, 0.0)

  def class_sum(label: jax.Array) -> jax.Array:
    return jnp.where((classes == label)[:, None], shares, 0.0).sum(axis=2)

  sums = jax.lax.map(class_sum, jnp.arange(data.num_classes))  # [L, S, K]
  return jnp.moveaxis(sums, 0, 2)


def _traffic(local: LocalTraining, num_clusters: int) -> traffic.Traffic:
  """Traffic of `fed_em`, and of one number for each center and class."""
  size = traffic.bytes_of_model(local)

  def round_costs(inputs, drawn):
    num_bytes = num_clusters * (size + int(inputs) * traffic.NUMBER)
    return traffic.Sent(num_bytes, num_bytes, num_clusters)

  return traffic.Traffic(
    round_costs, inputs=lambda state: np.int32(state.classes.shape[2]), model=size,
    models_up=num_clusters,
  )  # fmt: skip
