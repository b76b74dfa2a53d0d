"""Ditto: a personal model beside FedAvg's global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021.
"""

from typing import NamedTuple

from fesem_jax.algorithms.common import global_model, own_models
from fesem_jax.algorithms.common.global_model import Averaging, GlobalState
from fesem_jax.algorithms.common.own_models import deployed
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.objective import Objective
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.trained import WEIGHTINGS
from fesem_jax.utils.errors import check_at_least, check_choice


class DittoState(NamedTuple):
  """State of Ditto."""

  params: Params  # [1, ...] w
  client_params: Params  # [M, ...] v_i


def ditto(
  local: LocalTraining,
  *,
  ditto_lambda: float = 0.1,
  weighting: str = 'by_examples',
  client_state: str = 'stacked',
) -> Algorithm:
  """Builds Ditto.

    w_i <- SGD from w on client i                               for i in the cohort
    v_i <- SGD from v_i on F_i(v) + lambda / 2 |v - w|^2        w as it was sent
    w   <- sum_i alpha_i w_i                                    alpha_i = n_i / sum n_j

  A client deploys v_i, which starts as the first w; one that is not drawn keeps it.
  Both trainings take the same local work and visit the examples in the same order. The
  reported training loss is that of v_i.

  Args:
    local: how clients train.
    ditto_lambda: lambda; 0 trains every client alone (NonFed).
    weighting: 'by_examples' (alpha_i above) or 'uniform'.
    client_state: where the v_i are kept: 'stacked' on the devices, 'offloaded' in the
      memory of their host, from which each chunk's come and go.

  Raises:
    UserError: on an option outside its range.
  """
  check_at_least(0, ditto_lambda=ditto_lambda)
  check_choice('weighting', weighting, WEIGHTINGS)
  own_models.check_client_state(client_state)

  def init(key, data):
    start = local.model.init(key)
    own = own_models.repeat(local, start, data.num_clients, client_state)
    return DittoState(tree.expand(start), own)

  def train(local, state, data, cohort, key, reduction):
    starts = deployed(state, data).of(cohort)
    objective = Objective(
      penalty=variable(ditto_lambda / 2) if ditto_lambda else None,
      anchor=ClientModels(state.params),
    )
    return train_cohort(local, starts, data, cohort, key, objective, reduction)

  def step(state, data, cohort, key):
    shared, trained = global_model.train_and_average(
      local, GlobalState(state.params), data, cohort, key, Averaging(weighting)
    )
    own = train(local, state, data, cohort, key, Reduction())
    client_params = tree.with_rows(state.client_params, cohort, own.params)
    info = own.together_with(trained).info()
    return DittoState(shared.params, client_params), info

  sent = traffic.one_model(local)  # The v_i stay with their clients.
  return Algorithm(local, init, step, deployed, train=train, traffic=sent)
