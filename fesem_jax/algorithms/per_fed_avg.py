"""Per-FedAvg: a global model that adapts in one gradient step."""

from typing import Literal

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import batching, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.training.client_losses import cohort_gradients
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.one_client import for_each_batch
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import NotNegative

HESSIAN_DELTA = 0.01  # d, the step of the difference of gradients.


@recorded
def per_fed_avg(
  local: LocalTraining,
  *,
  adaptation_rate: NotNegative = 0.1,
  meta_gradient: Literal['first_order', 'hessian_free'] = 'first_order',
) -> Algorithm:
  """Builds Per-FedAvg (Fallah et al., "Personalized Federated Learning with Theoretical
  Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020: Algorithm 1).

  Clients minimize F_i(w - a grad F_i(w)). From w_i = x, each step takes the next two or
  three batches D, D' and D'' of the client:

    u   <- w_i - a grad F_i(w_i; D)
    g   <- grad F_i(u; D')
    w_i <- w_i - eta g                                              first order
    w_i <- w_i - eta (g - a (grad F_i(w_i + d g; D'') - grad F_i(w_i - d g; D'')) / 2d)

  the last being Hessian-free: a difference along g stands for the Hessian times g. Then

    x   <- mean_i w_i

  A client deploys x - a grad F_i(x), with its whole training loss and the newest x,
  drawn or not. Batches that are too few for a step change nothing. The reported
  training loss is the mean over all batches, each at the model that it is used with.

  Args:
    local: settings of local training; its optimizer steps along the meta-gradient, with
      learning rate eta.
    adaptation_rate: a, the rate of the step that adapts the global model to a client.
    meta_gradient: 'first_order' omits the Hessian, 'hessian_free' approximates it.

  Raises:
    UserError: when it starts, if no client has the batches of one step in a round.
  """
  batches = 3 if meta_gradient == 'hessian_free' else 2

  def init(key, data):
    most = batching.most_steps(local.schedule, data.max_examples)
    check(most >= batches, f'steps: must be at least {batches} batches; got {most}')
    return global_model.init(local)(key, data)

  def update_client(client):
    start, a, d = client.start, variable(adaptation_rate), variable(HESSIAN_DELTA)

    def local_step(t, w, memory, gradient_of):
      def take_step(meta, loss):
        new, state = client.descend(t, meta, memory['optimizer'], w)
        return new, memory | {'optimizer': state}, loss

      def adapt():
        loss, gradient = gradient_of(w)
        u = jax.tree.map(lambda w, g: w - a * g, w, gradient)
        return w, memory | {'adapted': u}, loss

      def outer():
        loss, gradient = gradient_of(memory['adapted'])
        result = w, memory | {'outer': gradient}, loss
        return take_step(gradient, loss) if batches == 2 else result

      def correct():
        g = memory['outer']
        loss, ahead = gradient_of(jax.tree.map(lambda w, g: w + d * g, w, g))
        other, behind = gradient_of(jax.tree.map(lambda w, g: w - d * g, w, g))
        hessian_product = jax.tree.map(lambda x, y: (x - y) / (2 * d), ahead, behind)
        meta = jax.tree.map(lambda g, h: g - a * h, g, hessian_product)
        return take_step(meta, (loss + other) / 2)

      # All clients are at the same batch, so one branch runs for a whole chunk.
      return jax.lax.switch(t % batches, [adapt, outer, correct][:batches])

    zeros = {'outer': tree.zeros_like(start)} if batches == 3 else {}
    memory = {'optimizer': client.optimizer_state(start), 'adapted': start} | zeros
    model = for_each_batch(client, start, memory, local_step)
    return model, client.send(model, client.received), None

  def train(local, state, data, cohort, key, reduction):
    starts = ClientModels(state.params)
    return for_each_client(update_client, local, starts, data, cohort, key, reduction)

  def step(state, data, cohort, key):
    args = local, state, data, cohort, key, Averaging('uniform'), train
    state, trained = global_model.train_and_average(*args)
    # The third batch of three takes two gradients.
    more = trained.steps // 3 if batches == 3 else 0
    return state, trained._replace(steps=trained.steps + more).info()

  def deployed(state, data):
    a, counts = variable(adaptation_rate), jnp.ones(data.num_clients, bool)
    grads, _ = cohort_gradients(local, state.params, data, everyone(data), counts)
    return ClientModels(
      personal=jax.tree.map(lambda x, g: x - a * g, state.params, grads)
    )

  return Algorithm(local, init, step, deployed, train=train)
