"""NonFed: every client trains alone; nothing is shared (Section 6.1.3)."""

from typing import NamedTuple

from fesem_jax import sharding, tree
from fesem_jax.base import Params
from fesem_jax.local import train_cohort
from fesem_jax.method import Algorithm, ClientModels
from fesem_jax.training import LocalTraining


class NonFedState(NamedTuple):
  """State of NonFed."""

  client_params: Params  # [M, ...] each client's own model


def non_fed(local: LocalTraining) -> Algorithm:
  """Builds NonFed.

    w_i <- SGD from w_i on client i     for i in the cohort

  All clients begin with the same random model. A client that is not drawn keeps
  and deploys its own.

  Args:
    local: how clients train; a round is one such piece of work.
  """

  def init(key, data):
    start = local.model.init(key)
    own = tree.repeat(start, data.num_clients)
    return NonFedState(sharding.split_clients(own, local.mesh))

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    trained = train_cohort(local, starts, data, cohort, key)
    client_params = tree.with_rows(state.client_params, cohort, trained.params)
    return NonFedState(client_params), trained.info()

  def deployed(state, data):
    del data
    return ClientModels(own=state.client_params)

  return Algorithm(local, init, step, deployed)
