"""FedSGD: one full-batch gradient step of the global model a round.

McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.
"""

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.base import Algorithm
from fesem_jax.batching import Schedule
from fesem_jax.local import LocalTraining


def fed_sgd(local: LocalTraining) -> Algorithm:
  """Builds FedSGD.

    g_i <- grad F_i(c)                  for i in the cohort, all its examples
    c   <- c - eta sum_i alpha_i g_i

  With w_i = c - eta g_i that is c <- sum_i alpha_i w_i: FedAvg with one
  full-batch step.

  Args:
    local: how clients train; its batch size, epochs and steps serve only
      fine-tuning.
  """
  return fed_avg(local._replace(schedule=Schedule(batch_size=0, steps=1)))
