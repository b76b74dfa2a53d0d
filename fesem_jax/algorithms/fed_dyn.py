"""FedDyn: a dynamic regularizer for each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, global_model
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd, plus
from fesem_jax.training.trained import mean_of_models
from fesem_jax.utils.ranges import Positive


class FedDynState(NamedTuple):
  params: Params  # [1, ...] x
  correction: Params  # [1, ...] h
  client_gradients: Params  # [M, ...] h_i


@recorded
def fed_dyn(
  local: LocalTraining,
  *,
  dyn_alpha: Positive = 0.01,
  client_state: client_models.ClientState = 'stacked',
) -> Algorithm:
  """Builds FedDyn (Acar et al., "Federated Learning Based on Dynamic Regularization",
  ICLR 2021: Algorithm 1).

    w_i <- SGD from x on F_i(w) - <h_i, w> + alpha / 2 |w - x|^2     for i in the cohort
    h_i <- h_i - alpha (w_i - x)
    h   <- h - alpha / M sum_i (w_i - x)
    x   <- mean_i w_i - h / alpha

  where h_i stands for grad F_i(w_i), which it equals if w_i is the exact minimum. The
  mean and the sum are over the cohort. All h_i and h start at 0.

  Args:
    dyn_alpha: alpha of the penalty, positive; with less, models move further.
    client_state: where the h_i are: 'stacked' on the devices, or 'offloaded' to hosts.
  """
  local.check_no_statistics('fed_dyn')

  def init(key, data):
    start = tree.expand(local.model.init(key))
    zero = tree.zeros_like(start)
    one = tree.unstack(zero, 0)
    client_gradients = client_models.repeat(local, one, data.num_clients, client_state)
    return FedDynState(start, zero, client_gradients)

  def update_client(client):
    alpha, h_i = variable(dyn_alpha), client.state
    linear_term = plus(jax.tree.map(jnp.negative, h_i))
    model = local_sgd(client, linear_term, penalty=alpha / 2)

    def changed(h, w, x):
      return h - alpha * (w - x)

    new = jax.tree.map(changed, h_i, model.params, client.received)
    return model, client.send(model, client.received), new

  def train(local, state, data, cohort, key, reduction):
    client_gradients = tree.rows_of(state.client_gradients, cohort)
    return for_each_client(
      update_client, local, ClientModels(state.params), data, cohort, key, reduction,
      state=client_gradients,
    )  # fmt: skip

  def step(state, data, cohort, key):
    x, h, _ = state
    reduction = mean_of_models('uniform', x)
    trained = train(local, state, data, cohort, key, reduction)
    mean, alpha = sums.mean_of(trained.sums, x), variable(dyn_alpha)
    share = alpha / (data.sizes() > 0).sum()
    h = jax.tree.map(lambda h, change: h - share * change, h, trained.sums.params)
    moved = jax.tree.map(lambda w, h: w - h / alpha, mean, h)
    any_client = trained.sums.weight > 0
    client_gradients = tree.with_rows(state.client_gradients, cohort, trained.state)
    new = tree.where(any_client, moved, x)
    return FedDynState(new, h, client_gradients), trained.info()

  return Algorithm(local, init, step, global_model.deployed, train=train)
