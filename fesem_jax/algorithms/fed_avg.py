"""FedAvg: one global model, the weighted mean of its clients.

McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017; Eq. 2 of Long et al. 2022.
"""

from fesem_jax.algorithms import global_model
from fesem_jax.algorithms.global_model import GlobalState
from fesem_jax.base import Algorithm, check_choice
from fesem_jax.local import WEIGHTINGS, LocalTraining, train_cohort


def fed_avg(local: LocalTraining, *, weighting: str = 'by_examples') -> Algorithm:
  """Builds FedAvg.

    w_i <- SGD from c on client i       for i in the cohort
    c   <- sum_i alpha_i w_i            alpha_i = n_i / sum_j n_j

  Args:
    local: how clients train.
    weighting: 'by_examples' (alpha_i above) or 'uniform' (alpha_i = 1 / S).

  Raises:
    UserError: on an unknown weighting.
  """
  check_choice('weighting', weighting, WEIGHTINGS)

  def step(state, data, cohort, key):
    row = global_model.row_of_all(cohort)
    trained = train_cohort(local, state.params, row, data, cohort, key)
    weights = trained.weights(weighting)
    params = global_model.mean(trained.params, weights, state.params)
    return GlobalState(params), trained.info()

  return Algorithm(global_model.init(local), step, global_model.deployed)
