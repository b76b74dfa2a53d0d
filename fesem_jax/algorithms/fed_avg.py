"""FedAvg: one global model, the weighted mean of its clients.

McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017; Eq. 2 of Long et al. 2022.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fesem_jax import tree
from fesem_jax.base import Algorithm, Deployed, Params, check_choice
from fesem_jax.local import WEIGHTINGS, LocalTraining, train_cohort


class FedAvgState(NamedTuple):
  """State of FedAvg."""

  params: Params  # [1, ...] the global model


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

  def init(key, data):
    del data
    return FedAvgState(tree.expand(local.model.init(key)))

  def step(state, data, cohort, key):
    first = jnp.zeros(cohort.ids.shape, jnp.int32)  # All start from row 0.
    trained = train_cohort(local, state.params, first, data, cohort, key)
    weights = trained.weights(weighting)
    params = tree.weighted_mean(trained.params, first, weights, state.params)
    return FedAvgState(params), trained.info()

  def deployed(state):
    return Deployed(state.params, row=jnp.int32(0))

  return Algorithm(init, step, deployed)
