"""FedDist and FedDWS: Reptile as federated methods (Section 6.1.3).

Nichol et al., "On First-Order Meta-Learning Algorithms", 2018, adapted as in
Long et al. 2022.
"""

import jax

from fesem_jax.algorithms import global_model
from fesem_jax.algorithms.global_model import GlobalState
from fesem_jax.base import Algorithm
from fesem_jax.errors import UserError
from fesem_jax.local import LocalTraining


def fed_dist(local: LocalTraining, *, server_learning_rate: float = 0.5) -> Algorithm:
  """Builds FedDist.

    w_i <- SGD from c on client i       for i in the cohort
    c   <- c + epsilon mean_i (w_i - c)

  Args:
    local: how clients train.
    server_learning_rate: epsilon; the paper does not state it.

  Raises:
    UserError: on an epsilon that is not positive.
  """
  return _reptile(local, server_learning_rate, 'uniform')


def fed_dws(local: LocalTraining, *, server_learning_rate: float = 0.5) -> Algorithm:
  """Builds FedDWS: FedDist with clients weighted by their examples.

    c   <- c + epsilon sum_i alpha_i (w_i - c)

  Args:
    local: how clients train.
    server_learning_rate: epsilon; with 1 this is FedAvg.

  Raises:
    UserError: on an epsilon that is not positive.
  """
  return _reptile(local, server_learning_rate, 'by_examples')


def _reptile(local: LocalTraining, epsilon: float, weighting: str) -> Algorithm:
  if not epsilon > 0:
    raise UserError(f'--server_learning_rate={epsilon} must be positive.')

  def step(state, data, cohort, key):
    mean, trained = global_model.train_and_average(
      local, state, data, cohort, key, weighting
    )
    params = jax.tree.map(lambda c, w: c + epsilon * (w - c), state.params, mean)
    return GlobalState(params), trained.info()

  return Algorithm(global_model.init(local), step, global_model.deployed)
