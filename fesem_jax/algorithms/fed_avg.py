"""FedAvg: one global model, the weighted mean of its clients."""

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.server import robust
from fesem_jax.server.optimizers import ServerOptimizer, mask_batch_stats
from fesem_jax.training.trained import Weighting


@recorded
def fed_avg(
  local: LocalTraining,
  *,
  weighting: Weighting = 'by_examples',
  aggregation: str = 'mean',
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks
  from Decentralized Data", AISTATS 2017; Eq. 2 of Long et al. 2022).

    w_i <- SGD from c on client i       for i in the cohort
    c   <- sum_i alpha_i w_i            alpha_i = n_i / sum_j n_j

  Args:
    weighting: of clients in the mean: 'by_examples' (alpha_i) or 'uniform' (1 / S).
    aggregation: rule in place of the mean; see `robust.aggregation`.
    server_optimizer: steps along sum_i alpha_i (w_i - c); None takes the mean.
  """
  server_optimizer = mask_batch_stats(server_optimizer, local.model.statistics)
  averaging = Averaging(weighting, server_optimizer, robust.aggregation(aggregation))

  def step(state, data, cohort, key):
    state, trained = global_model.train_and_average(
      local, state, data, cohort, key, averaging
    )
    return state, trained.info()

  init = global_model.init(local, server_optimizer)
  return Algorithm(local, init, step, global_model.deployed)
