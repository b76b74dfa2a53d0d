"""FedAvg: one global model, the weighted mean of its clients.

McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017; Eq. 2 of Long et al. 2022.
"""

from fesem_jax.algorithms import global_model
from fesem_jax.algorithms.global_model import GlobalState
from fesem_jax.base import Algorithm
from fesem_jax.errors import check_choice
from fesem_jax.local import WEIGHTINGS, LocalTraining


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
    params, trained = global_model.train_and_average(
      local, state, data, cohort, key, weighting
    )
    return GlobalState(params), trained.info()

  return Algorithm(global_model.init(local), step, global_model.deployed)
