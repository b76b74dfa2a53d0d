"""FedOpt: FedAvg with an adaptive optimizer on the server."""

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer


@recorded
def fed_opt(
  local: LocalTraining,
  *,
  server_optimizer: ServerOptimizer = server_optimizers.adam(),  # noqa: B008 - it is immutable.
) -> Algorithm:
  """Builds FedOpt (Reddi et al., "Adaptive Federated Optimization", ICLR 2021).

    w_i   <- SGD from x on client i       for i in the cohort
    Delta <- sum_i alpha_i (w_i - x)      alpha_i = n_i / sum_j n_j
    x     <- a step of the server's optimizer along Delta

  FedAvgM, FedAdagrad, FedAdam and FedYogi use `momentum`, `adagrad`, `adam` and `yogi`
  of `fj.server_optimizers`. FedAvg, FeSEM and HypoCluster have the same option, the
  last two for each of their centers.

  Args:
    server_optimizer: FedAdam by default; any Optax optimizer.
  """
  return fed_avg(local, server_optimizer=server_optimizer)
