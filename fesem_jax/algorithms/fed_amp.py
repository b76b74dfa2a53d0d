"""FedAMP: clients' models are pulled toward similar models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.client_models import deployed
from fesem_jax.algorithms.common.pulled import train_pulled
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.gram_matrices import squared_distances
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.ranges import NotNegative, Positive


class FedAmpState(NamedTuple):
  client_params: Params  # [M, ...] w_i


@recorded
def fed_amp(
  local: LocalTraining, *, amp_lambda: NotNegative = 0.01, amp_sigma: Positive = 10.0
) -> Algorithm:
  """Builds FedAMP (Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID
  Data", AAAI 2021: Algorithm 1).

    xi_ij <- alpha A'(|w_i - w_j|^2)     for i != j;  A(d) = 1 - exp(-d / sigma)
    xi_ii <- 1 - sum_{j != i} xi_ij
    u_i   <- sum_j xi_ij w_j                                      on the server
    w_i   <- SGD from w_i on F_i(w) + lambda / (2 alpha) |w - u_i|^2

  so that A'(d) = exp(-d / sigma) / sigma. alpha = sigma / (S - 1) is the largest value
  for which no xi_ii can be negative. Sums are over the S clients of the round, with the
  models before it. A client deploys w_i; the reported training loss is F_i.

  Args:
    amp_lambda: lambda of the pull to a mean of similar models; 0 trains every client
      alone (NonFed).
    amp_sigma: sigma, the squared distance at which attention falls to 1 / e.
  """
  local.check_no_statistics('fed_amp')

  def init(key, data):
    local.check_no_sends('fed_amp', 'models that did not start from a received one')
    start = local.model.init(key)
    return FedAmpState(client_models.repeat(local, start, data.num_clients, 'stacked'))

  def train(local, state, data, cohort, key, reduction):
    starts = deployed(state, data).of(cohort)
    if not amp_lambda:
      return train_cohort(local, starts, data, cohort, key, reduction)
    exists = data.sizes(jnp.asarray(cohort.ids)) > 0
    distances = squared_distances(starts.personal, local.mesh, exists.argmax())
    alpha = variable(amp_sigma) / jnp.maximum(exists.sum() - 1, 1)
    xi = attention(distances, exists, alpha, variable(amp_sigma))
    factors = jnp.broadcast_to(variable(amp_lambda / 2) / alpha, exists.shape)
    pull = tree.mixtures(xi, starts.personal), factors
    return train_pulled(local, starts, data, cohort, key, reduction, pull)

  def step(state, data, cohort, key):
    trained = train(local, state, data, cohort, key, Reduction(sent='personal'))
    personal = tree.with_rows(state.client_params, cohort, trained.params)
    return FedAmpState(personal), trained.info()

  return Algorithm(local, init, step, deployed, train=train)


def attention(
  distances: jax.Array,
  exists: jax.Array,
  alpha: jax.Array | float,
  sigma: jax.Array | float,
) -> jax.Array:
  """[S, S] float32 xi, whose rows add up to 1, by squared distances [S, S]."""
  pairs = exists[:, None] & exists[None] & ~jnp.eye(exists.shape[0], dtype=bool)
  xi = jnp.where(pairs, alpha * jnp.exp(-distances / sigma) / sigma, 0.0)
  return xi + jnp.diag(1 - xi.sum(axis=1))
