"""L2GD: clients train locally, and average in random rounds."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.client_models import deployed
from fesem_jax.core import prng_streams, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.data.attacks import check_models_only
from fesem_jax.server import em
from fesem_jax.training.client_losses import personal_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.plain_sgd import learning_rate
from fesem_jax.training.trained import Trained
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import NotNegative, Range


class L2gdState(NamedTuple):
  client_params: Params  # [M, ...] x_i
  aggregates: jax.Array  # [] bool, the coin of the next round


@recorded
def l2gd(
  local: LocalTraining,
  *,
  l2gd_lambda: NotNegative = 0.1,
  aggregation_probability: Annotated[float, Range(above=0, below=1)] = 0.2,
) -> Algorithm:
  """Builds L2GD (Hanzely and Richtarik, "Federated Learning of a Mixture of Global and
  Local Models", 2020: Algorithm 1).

  It minimizes mean_i F_i(x_i) + lambda / 2 mean_i |x_i - mean_j x_j|^2. A round is one
  toss of the server's coin, the same for all clients: with the probability p

    x_i <- x_i + theta (mean_j x_j - x_i)          theta = eta lambda (1 - p) / p

  and else

    x_i <- SGD from x_i on client i

  The paper's one step along the whole gradient is `batch_size=0` and `steps=1`; more
  local steps make lambda that many times weaker. A client deploys x_i; one that is not
  drawn keeps it, and has no part in the mean. The training loss of a round of
  aggregation is that of the x_i before it.

  Args:
    local: settings of local training; eta is the learning rate of its optimizer, times
      the round's factor of its schedule.
    l2gd_lambda: lambda of the pull to the mean of all models; 0 trains every client
      alone in the other rounds.
    aggregation_probability: p, in (0, 1): that of a round in which models are averaged.

  Raises:
    UserError: unless the local optimizer is plain SGD, or if theta is more than 1; or,
      when it starts, where bad clients lie about models.
  """
  eta, p = learning_rate(local), aggregation_probability
  theta = eta * l2gd_lambda * (1 - p) / p
  check(theta <= 1 + 1e-6, f'l2gd_lambda: theta is {theta:.3g}, above 1; lower it')

  def toss(key):
    coin_key = prng_streams.fold(key, prng_streams.NEXT_ROUND)
    return jax.random.bernoulli(coin_key, variable(aggregation_probability))

  def init(key, data):
    check_models_only(
      data, local, 'l2gd', 'models that did not start from a received one'
    )
    start = local.model.init(key)
    personal = client_models.repeat(local, start, data.num_clients, 'stacked')
    return L2gdState(personal, toss(key))

  def aggregate(state, data, cohort, key):
    personal, ids = tree.rows_of(state.client_params, cohort), jnp.asarray(cohort.ids)
    sizes, steps = data.sizes(ids), jnp.zeros(ids.shape, jnp.int32)
    arrived = local.arrived(key, data, ids)
    losses = personal_losses(local, personal, data, cohort)
    clients = Trained(ids, None, losses, sizes, jnp.isfinite(losses), arrived, steps)
    weights = clients.weights('uniform')
    first = tree.take(personal, weights.argmax()[None])
    mean = em.m_step(personal, jnp.zeros_like(ids), weights, first, local.mesh)
    share, rate = variable(aggregation_probability), local.rate(cohort)
    theta = variable(eta) * variable(l2gd_lambda) * (1 - share) / share
    theta = theta if rate is None else rate * theta
    moved = jax.tree.map(lambda x, m: x + theta * (m - x), personal, mean)
    return clients._replace(params=tree.where(clients.took_part(), moved, personal))

  def train(state, data, cohort, key):
    starts = ClientModels(personal=tree.rows_of(state.client_params, cohort))
    return train_cohort(local, starts, data, cohort, key)

  def step(state, data, cohort, key):
    # The key too is of the branch: what is noted of it is known to be within one.
    clients = jax.lax.cond(
      state.aggregates,
      lambda key: aggregate(state, data, cohort, key),
      lambda key: train(state, data, cohort, key),
      key,
    )
    personal = tree.with_rows(state.client_params, cohort, clients.params)
    return L2gdState(personal, toss(key)), clients.info()

  return Algorithm(local, init, step, deployed, traffic=_traffic(local))


def _traffic(local: LocalTraining) -> traffic.Traffic:
  """Models go up and their mean comes down in the rounds of aggregation."""
  size = traffic.bytes_of_model(local)

  def round_costs(aggregates, drawn):
    return traffic.Sent(size, size) if aggregates else traffic.Sent(0, 0)

  return traffic.Traffic(round_costs, inputs=lambda state: state.aggregates, model=size)
