"""Ditto: a personal model per client, pulled toward the global one."""

from typing import NamedTuple

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.client_models import deployed
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd, toward
from fesem_jax.training.trained import mean_of_models
from fesem_jax.utils.ranges import NotNegative


class DittoState(NamedTuple):
  params: Params  # [1, ...] w
  client_params: Params  # [M, ...] v_i


@recorded
def ditto(
  local: LocalTraining,
  *,
  ditto_lambda: NotNegative = 0.1,
  client_state: client_models.ClientState = 'stacked',
) -> Algorithm:
  """Builds Ditto (Li et al., "Ditto: Fair and Robust Federated Learning Through
  Personalization", ICML 2021).

    w_i <- SGD from w on client i                               for i in the cohort
    v_i <- SGD from v_i on F_i(v) + lambda / 2 |v - w|^2        w as it was sent
    w   <- sum_i alpha_i w_i                                    alpha_i = n_i / sum n_j

  A client deploys v_i, which starts as the first w; one that is not drawn keeps it.
  Both trainings take the same local work and visit the examples in the same order. The
  reported training loss is that of v_i.

  Args:
    ditto_lambda: lambda of the pull to the global model; 0 trains every client alone
      (NonFed).
    client_state: where the v_i are: 'stacked' on the devices, or 'offloaded' to hosts.
  """

  def init(key, data):
    start = local.model.init(key)
    personal = client_models.repeat(local, start, data.num_clients, client_state)
    return DittoState(tree.expand(start), personal)

  def train_own(client, v, w):
    pull = [toward(w, variable(ditto_lambda / 2))] if ditto_lambda else []
    return local_sgd(client, *pull, start=v)

  def train(local, state, data, cohort, key, reduction):
    def update_client(client):
      model = train_own(client, client.start, tree.unstack(client.broadcast, 0))
      return model, client.send(model, client.received), None

    starts = deployed(state, data).of(cohort)
    return for_each_client(
      update_client, local, starts, data, cohort, key, reduction,
      broadcast=state.params,
    )  # fmt: skip

  def update_client(client):
    w = local_sgd(client)
    v = train_own(client, client.state, client.received)
    return v.after(w), client.send(w, client.received), v.params

  def step(state, data, cohort, key):
    w, personal = state.params, tree.rows_of(state.client_params, cohort)
    trained = for_each_client(
      update_client, local, ClientModels(w), data, cohort, key,
      mean_of_models('by_examples', w), state=personal,
    )  # fmt: skip
    personal = tree.with_rows(state.client_params, cohort, trained.state)
    return DittoState(sums.mean_of(trained.sums, w), personal), trained.info()

  return Algorithm(local, init, step, deployed, train=train)
