"""FedDist and FedDWS: Reptile as federated methods (Section 6.1.3)."""

import optax

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.core import hyperparameters
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.utils.ranges import Positive


@recorded
def fed_dist(
  local: LocalTraining, *, server_learning_rate: Positive = 0.5
) -> Algorithm:
  """Builds FedDist (Nichol et al., "On First-Order Meta-Learning Algorithms", 2018,
  adapted as in Long et al. 2022).

    w_i <- SGD from c on client i       for i in the cohort
    c   <- c + epsilon mean_i (w_i - c)

  Args:
    server_learning_rate: epsilon, the step of the server; the paper does not state it.
  """
  towards = _towards_the_mean(server_learning_rate)
  return fed_avg(local, weighting='uniform', server_optimizer=towards)


@recorded
def fed_dws(local: LocalTraining, *, server_learning_rate: Positive = 0.5) -> Algorithm:
  """Builds FedDWS: FedDist with clients weighted by their examples.

    c   <- c + epsilon sum_i alpha_i (w_i - c)

  Args:
    server_learning_rate: epsilon, the step of the server; with 1 this is FedAvg.
  """
  towards = _towards_the_mean(server_learning_rate)
  return fed_avg(local, weighting='by_examples', server_optimizer=towards)


def _towards_the_mean(epsilon: float) -> optax.GradientTransformation:
  return hyperparameters.optimizer(optax.sgd, epsilon)
