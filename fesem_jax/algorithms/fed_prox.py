"""FedProx: FedAvg with a proximal term and partial local work."""

from fesem_jax.algorithms.common import global_model, stragglers
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.training.trained import Weighting
from fesem_jax.utils.ranges import Fraction, NotNegative


@recorded
def fed_prox(
  local: LocalTraining,
  *,
  prox_mu: NotNegative = 0.1,
  straggler_fraction: Fraction = 0.0,
  weighting: Weighting = 'by_examples',
) -> Algorithm:
  """Builds FedProx (Li et al., "Federated Optimization in Heterogeneous Networks",
  MLSys 2020).

    w_i <- SGD from c on F_i(w) + mu / 2 |w - c|^2      for i in the cohort
    c   <- sum_i alpha_i w_i

  Stragglers run a random number of epochs from 1 to E and still count.

  Args:
    prox_mu: mu; 0.1 in Long et al. 2022.
    straggler_fraction: probability that a client straggles in a round.
    weighting: 'by_examples' or 'uniform'.
  """

  def train(local, state, data, cohort, key, reduction):
    penalty = variable(prox_mu / 2) if prox_mu else None
    epochs = stragglers.epochs(local, data, cohort, key, straggler_fraction)
    return global_model.train(
      local, state, data, cohort, key, reduction, penalty=penalty, epochs=epochs
    )

  def step(state, data, cohort, key):
    state, trained = global_model.train_and_average(
      local, state, data, cohort, key, Averaging(weighting), train
    )
    return state, trained.info()

  init = global_model.init(local)
  return Algorithm(local, init, step, global_model.deployed, train=train)
