"""NonFed: every client trains alone (Section 6.1.3)."""

from typing import NamedTuple

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.client_models import deployed
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import train_cohort


class NonFedState(NamedTuple):
  client_params: Params  # [M, ...] each client's own model


@recorded
def non_fed(
  local: LocalTraining, *, client_state: client_models.ClientState = 'stacked'
) -> Algorithm:
  """Builds NonFed.

    w_i <- SGD from w_i on client i     for i in the cohort

  All clients begin with the same random model. A client that is not drawn keeps
  and deploys its own.

  Args:
    client_state: where models are: 'stacked' on the devices, or 'offloaded' to hosts.
  """

  def init(key, data):
    start = local.model.init(key)
    return NonFedState(
      client_models.repeat(local, start, data.num_clients, client_state)
    )

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    trained = train_cohort(local, starts, data, cohort, key)
    client_params = tree.with_rows(state.client_params, cohort, trained.params)
    return NonFedState(client_params), trained.info()

  return Algorithm(local, init, step, deployed, traffic=traffic.same_for_all(0, 0))
