"""FedEM: each client predicts with its own mixture of K shared models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, learners
from fesem_jax.algorithms.common.learners import deployed
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import sharding, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.example_losses import example_losses
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.ranges import Count


class FedEmState(NamedTuple):
  centers: Params  # [K, ...] c_k, the components
  mixture: jax.Array  # [M, K] float32 pi_i as of when each client last took part


@recorded
def fed_em(
  local: LocalTraining, *, num_clusters: Count = 4, weighting: Weighting = 'by_examples'
) -> Algorithm:
  """Builds FedEM with K components (Marfoq et al., "Federated Multi-Task Learning under
  a Mixture of Distributions", NeurIPS 2021: Algorithm 1).

    q_s(k) <- pi_ik exp(-l(c_k; s)) / sum_j pi_ij exp(-l(c_j; s))  for s of client i
    pi_ik  <- mean_s q_s(k)
    w_ik   <- SGD from c_k on mean_s q_s(k) l(w; s)                for all k
    c_k    <- sum_i alpha_i w_ik                                   alpha_i = n_i / n

  for the clients i of the cohort, which have n examples in all. l is the negative log
  likelihood of an example: of its class, of its target with a normal error, or of its
  tokens, their mean. A client deploys the mixture sum_k pi_ik softmax(c_k); of a
  regression, sum_k pi_ik c_k(x). A component whose training fails on a client is left
  out of that component's mean.

  Args:
    num_clusters: K.
    weighting: 'by_examples' (alpha_i above) or 'uniform'.
  """

  def init(key, data):
    centers = random_models(local, key, num_clusters)
    even = jnp.full((data.num_clients, num_clusters), 1 / num_clusters)
    return FedEmState(centers, sharding.split_clients(even, local.mesh))

  def step(state, data, cohort, key):
    mixture = tree.rows_of(state.mixture, cohort)
    losses = example_losses(local, state.centers, data, cohort)
    shares = learners.responsibilities(mixture, -losses)
    centers, trained = learners.train(
      local, state.centers, shares, data, cohort, key, weighting
    )
    mixture = learners.mixture_of(shares, data, cohort)
    state = client_models.updated(state, cohort, trained.took_part(), mixture=mixture)
    return state._replace(centers=centers), trained.info()

  sent = learners.all_centers(local, num_clusters)
  return Algorithm(local, init, step, deployed, traffic=sent)
