"""pFedMe: personal models as the proximal points of local ones."""

from typing import NamedTuple

import jax

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.client_models import deployed
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.one_client import for_each_batch, where
from fesem_jax.training.trained import Weighting, mean_of_models
from fesem_jax.utils.ranges import Count, Positive


class PFedMeState(NamedTuple):
  params: Params  # [1, ...] x
  client_params: Params  # [M, ...] theta_i


@recorded
def p_fed_me(
  local: LocalTraining,
  *,
  pfedme_lambda: Positive = 15.0,
  inner_steps: Count = 5,
  inner_learning_rate: Positive = 0.1,
  server_learning_rate: Positive = 1.0,
  weighting: Weighting = 'uniform',
) -> Algorithm:
  """Builds pFedMe (Dinh et al., "Personalized Federated Learning with Moreau
  Envelopes", NeurIPS 2020: Algorithm 1).

  From w_i = x, each local step takes one batch, on which F_i is, and

    theta_i <- argmin over theta of F_i(theta) + lambda / 2 |theta - w_i|^2, about
    w_i     <- w_i - eta lambda (w_i - theta_i)

  where the argmin is `inner_steps` gradient steps on that batch, from the theta_i of
  the step before; in the first step of a round, from x. Then

    x       <- (1 - beta) x + beta mean_i w_i

  A client deploys theta_i of its last local step, and reports its loss as it meets each
  batch.

  Args:
    local: settings of local training; its optimizer takes the step of w_i along
      lambda (w_i - theta_i), with learning rate eta. Its schedules multiply eta alone.
    pfedme_lambda: lambda, positive: the pull of personal models to the local ones.
    inner_steps: gradient steps toward theta_i on each batch.
    inner_learning_rate: learning rate of the steps toward theta_i.
    server_learning_rate: beta, the step of the server to the mean.
    weighting: 'uniform' (above) or 'by_examples', of the w_i in their mean.
  """

  def init(key, data):
    start = local.model.init(key)
    personal = client_models.repeat(local, start, data.num_clients, 'stacked')
    return PFedMeState(tree.expand(start), personal)

  def update_client(client):
    x, pull = client.received, variable(pfedme_lambda)
    length = variable(inner_learning_rate)

    def local_step(t, params, state, gradient_of):
      def toward(theta, _):
        loss, gradient = gradient_of(theta)

        def moved(t, g, w):
          return t - length * (g + pull * (t - w))

        return jax.tree.map(moved, theta, gradient, w), loss

      w, theta = params
      theta = where(t == 0, w, theta)
      theta, losses = jax.lax.scan(toward, theta, None, length=inner_steps)
      envelope = jax.tree.map(lambda w, t: pull * (w - t), w, theta)
      w, state = client.descend(t, envelope, state, w)
      return (w, theta), state, losses[0]

    first = client.optimizer_state(x)
    trained = for_each_batch(client, (x, client.state), first, local_step)
    w, theta = trained.params
    return trained, client.send(trained.of(w), x), theta

  def step(state, data, cohort, key):
    x, personal = state.params, tree.rows_of(state.client_params, cohort)
    trained = for_each_client(
      update_client, local, ClientModels(x), data, cohort, key,
      mean_of_models(weighting, x), state=personal,
    )  # fmt: skip
    mean, beta = sums.mean_of(trained.sums, x), variable(server_learning_rate)
    params = jax.tree.map(lambda x, w: x + beta * (w - x), x, mean)
    client_params = tree.with_rows(state.client_params, cohort, trained.state)
    info = trained._replace(steps=inner_steps * trained.steps).info()
    return PFedMeState(params, client_params), info

  return Algorithm(local, init, step, deployed)
