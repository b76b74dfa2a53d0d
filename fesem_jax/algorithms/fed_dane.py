"""FedDANE: federated Newton-type optimization by corrected gradients."""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import prng_streams, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import sample_clients
from fesem_jax.core.sums import mean_of
from fesem_jax.data.attacks import check_models_only
from fesem_jax.training.client_losses import cohort_gradients
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd, plus
from fesem_jax.utils.ranges import NotNegative


@recorded
def fed_dane(
  local: LocalTraining, *, prox_mu: NotNegative = 0.1, same_cohort: bool = False
) -> Algorithm:
  """Builds FedDANE (Li et al., "FedDANE: A Federated Newton-Type Method", 2019).

    g   <- mean_i grad F_i(c)                           for i in a first cohort
    w_i <- SGD from c on F_i(w) + <g - grad F_i(c), w> + mu / 2 |w - c|^2
                                                        for i in the cohort
    c   <- mean_i w_i

  The first cohort is as large as the second and drawn independently of it; the authors'
  code draws the same one, and weights both means by examples. The gradients grad F_i(c)
  are without Dropout or augmentation; local training has both.

  Args:
    prox_mu: mu, the factor of the squared distance to c.
    same_cohort: use one cohort for both passes, as the authors' code does.
  """

  def init(key, data):
    check_models_only(data, local, 'fed_dane', 'gradients and models')
    return global_model.init(local)(key, data)

  def first_cohort(data, cohort, key):
    key = prng_streams.fold(key, prng_streams.FIRST_COHORT)
    number = (data.sizes(cohort.ids) > 0).sum()  # Without the cohort's padding.
    most = cohort.ids.shape[0]
    return sample_clients(key, data, most, local.mesh, number=number)

  def train(local, state, data, cohort, key, reduction):
    def gradients(cohort, keep):
      arrived = local.arrived(key, data, cohort.ids)
      return cohort_gradients(local, state.params, data, cohort, arrived, keep)

    client_gradients, sums = gradients(cohort, keep=True)
    if not (cohort.everyone or same_cohort):
      _, sums = gradients(first_cohort(data, cohort, key), keep=False)
    # Without any gradient of the first cohort there is nothing to correct by.
    has_gradients = sums.weight[0] > 0
    g = mean_of(sums, tree.zeros_like(state.params))

    def update_client(client):
      (g, has_gradients), client_gradients = client.broadcast, client.inputs

      def difference(g, client_gradients):
        return jnp.where(has_gradients, g[0] - client_gradients, 0.0)

      correction = plus(jax.tree.map(difference, g, client_gradients))
      penalty = variable(prox_mu / 2) if prox_mu else None
      model = local_sgd(client, correction, penalty=penalty)
      return model, client.send(model, client.received), None

    return for_each_client(
      update_client, local, ClientModels(state.params), data, cohort, key, reduction,
      inputs=client_gradients, broadcast=(g, has_gradients),
    )  # fmt: skip

  def step(state, data, cohort, key):
    state, trained = global_model.train_and_average(
      local, state, data, cohort, key, Averaging('uniform'), train
    )
    return state, trained.info()

  sent = _traffic(local, same_cohort)
  return Algorithm(local, init, step, global_model.deployed, train=train, traffic=sent)


def _traffic(local: LocalTraining, same_cohort: bool) -> traffic.Traffic:
  """Traffic of both passes; by default the first one has another cohort."""
  size = traffic.bytes_of_model(local)

  def round_costs(inputs, drawn):
    passes = 1 if same_cohort or drawn.everyone else 2
    return traffic.Sent((passes + 1) * size, 2 * size, 3 * passes)

  return traffic.Traffic(round_costs, model=size)
