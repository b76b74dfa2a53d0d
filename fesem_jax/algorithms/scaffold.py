"""SCAFFOLD: local training corrected by control variates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, global_model
from fesem_jax.core import batching, sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.data.attacks import check_models_only
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd, plus
from fesem_jax.training.one_client import where
from fesem_jax.training.plain_sgd import at_unit_rate, learning_rate
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.ranges import Positive


class ScaffoldState(NamedTuple):
  params: Params  # [1, ...] x
  control: Params  # [1, ...] c
  client_controls: Params  # [M, ...] c_i


@recorded
def scaffold(
  local: LocalTraining,
  *,
  server_learning_rate: Positive = 1.0,
  client_state: client_models.ClientState = 'stacked',
) -> Algorithm:
  """Builds SCAFFOLD (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for
  Federated Learning", ICML 2020, option II).

    w_i  <- T steps of SGD from x with gradients g - c_i + c      for i in the cohort
    c_i' <- c_i - c + (x - w_i) / (T eta)
    x    <- x + eta_g mean_i (w_i - x)
    c    <- c + 1 / M sum_i (c_i' - c_i)

  All control variates start at 0, so the first round is FedAvg's.

  Args:
    local: settings of local training; eta is the learning rate of its optimizer, times
      the round's factor of its schedule. With a schedule over local steps, T is the sum
      of its factors.
    server_learning_rate: eta_g, the learning rate of the server.
    client_state: where the c_i are: 'stacked' on the devices, or 'offloaded' to hosts.

  Raises:
    UserError: unless the local optimizer is plain SGD; or, when it starts, where bad
      clients lie about models.
  """
  if server_learning_rate != 1:  # Beyond the mean of the clients, or short of it.
    local.check_no_statistics('scaffold')
  eta = learning_rate(local)

  def init(key, data):
    check_models_only(data, local, 'scaffold', 'control variates and models')
    start = tree.expand(local.model.init(key))
    zero = tree.zeros_like(start)
    one = tree.unstack(zero, 0)
    client_controls = client_models.repeat(local, one, data.num_clients, client_state)
    return ScaffoldState(start, zero, client_controls)

  def corrected(client):
    c, c_i = tree.unstack(client.broadcast, 0), client.state
    return local_sgd(client, plus(jax.tree.map(jnp.subtract, c, c_i)))

  def update_client(client):
    c, c_i, model = tree.unstack(client.broadcast, 0), client.state, corrected(client)
    most = batching.most_steps(local.schedule, client.data.max_examples)
    length = variable(eta) * local.sum_over_steps(jnp.maximum(client.steps, 1), most)

    def mean_gradient(x, w):
      return (x - w) / length

    gradient = jax.tree.map(mean_gradient, client.received, model.params)
    unit_gradient, weight = at_unit_rate(gradient, jnp.float32(1.0), client.rate)
    new = jax.tree.map(lambda c_i, c, g: c_i - c + g, c_i, c, unit_gradient)
    return model, (model.params, gradient), where(weight > 0, new, c_i)

  def run(update_client, local, state, data, cohort, key, reduction):
    client_controls = tree.rows_of(state.client_controls, cohort)
    return for_each_client(
      update_client, local, ClientModels(state.params), data, cohort, key, reduction,
      state=client_controls, broadcast=state.control,
    )  # fmt: skip

  def train(local, state, data, cohort, key, reduction):
    def model_alone(client):
      model = corrected(client)
      return model, client.send(model, client.received), client.state

    return run(model_alone, local, state, data, cohort, key, reduction)

  def step(state, data, cohort, key):
    x, c, _ = state
    none = sums.no_sums(x)
    reduction = Reduction(_add_up, (none, none), keep=False)
    trained = run(update_client, local, state, data, cohort, key, reduction)
    models, gradients = trained.sums
    mean = sums.mean_of(models, x)
    eta_g = variable(server_learning_rate)
    x = jax.tree.map(lambda x, w: x + eta_g * (w - x), x, mean)
    rate = local.rate(cohort)
    total, weight = at_unit_rate(gradients.params, gradients.weight, rate)
    num_clients = (data.sizes() > 0).sum()

    # c_i' - c_i = (x - w_i) / (T eta) - c, of those that took part.
    def add_change(c, g):
      return c + (g - weight[0] * c) / num_clients

    c = jax.tree.map(add_change, c, total)
    client_controls = tree.with_rows(state.client_controls, cohort, trained.state)
    return ScaffoldState(x, c, client_controls), trained.info()

  num_bytes = 2 * traffic.bytes_of_model(local)
  sent = traffic.same_for_all(num_bytes, num_bytes)._replace(extras=None)
  return Algorithm(local, init, step, global_model.deployed, train=train, traffic=sent)


def _add_up(trained: Trained, starts: ClientModels, total: Any) -> tuple[Any, Any]:
  (models, gradients), x = trained.params, starts.shared
  ones = trained.weights('uniform')
  return None, (
    sums.add_to_one(total[0], models, ones, x),
    sums.add_to_one(total[1], gradients, ones, tree.zeros_like(x)),
  )
