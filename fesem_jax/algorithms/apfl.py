"""APFL: each client mixes a personal model with the global one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.one_client import for_each_batch
from fesem_jax.training.plain_sgd import is_plain_sgd, learning_rate
from fesem_jax.training.trained import mean_of_models
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Fraction


class ApflState(NamedTuple):
  params: Params  # [1, ...] w
  client_params: Params  # [M, ...] v_i
  client_alphas: jax.Array  # [M] float32 a_i


@recorded
def apfl(local: LocalTraining, *, apfl_alpha: Fraction = 0.5) -> Algorithm:
  """Builds APFL (Deng et al., "Adaptive Personalized Federated Learning", 2020).

  With m_i = a_i v_i + (1 - a_i) w_i, which starts from w, each step on a batch is

    w_i <- w_i - eta grad F_i(w_i)
    v_i <- v_i - eta a_i grad F_i(m_i)
    a_i <- a_i - eta <grad F_i(m_i), v_i - w_i>, then clipped to [0, 1]

  where the right sides have the values before the step, as in the paper. Then

    w   <- sum_i alpha_i w_i                  alpha_i = n_i / sum n_j over the cohort

  A client deploys a_i v_i + (1 - a_i) w with the newest w, and reports the loss of m_i.

  Args:
    local: settings of local training; its optimizer, plain SGD of rate eta, updates w_i
      and v_i.
    apfl_alpha: the first a_i, the weight of a client's personal model.
  """
  check(is_plain_sgd(local), 'optimizer: apfl needs plain SGD')
  eta = learning_rate(local)

  def init(key, data):
    start, count = local.model.init(key), data.num_clients
    personal = client_models.repeat(local, start, count, 'stacked')
    alphas = jnp.full(count, variable(apfl_alpha), jnp.float32)
    return ApflState(tree.expand(start), personal, alphas)

  def update_client(client):
    w, (v, alpha) = client.received, client.state

    def local_step(t, params, memory, gradient_of):
      (w, v, alpha), (memory_w, memory_v) = params, memory
      _, w_gradient = gradient_of(w)
      loss, mix_gradient = gradient_of(_mix(alpha, v, w))
      v_gradient = jax.tree.map(lambda g: alpha * g, mix_gradient)
      new_w, memory_w = client.descend(t, w_gradient, memory_w, w)
      new_v, memory_v = client.descend(t, v_gradient, memory_v, v)
      slope = jax.tree.map(lambda g, v, w: (g * (v - w)).sum(), mix_gradient, v, w)
      rate = local.rate_of_step(t, client.rate)
      length = variable(eta) * (1.0 if rate is None else rate)
      alpha = jnp.clip(alpha - length * sum(jax.tree.leaves(slope)), 0.0, 1.0)
      return (new_w, new_v, alpha), (memory_w, memory_v), loss

    first = client.optimizer_state(w), client.optimizer_state(v)
    trained = for_each_batch(client, (w, v, alpha), first, local_step)
    w, v, alpha = trained.params
    return trained, client.send(trained.of(w), client.received), (v, alpha)

  def step(state, data, cohort, key):
    w, personal = state.params, (state.client_params, state.client_alphas)
    trained = for_each_client(
      update_client, local, ClientModels(w), data, cohort, key,
      mean_of_models('by_examples', w), state=tree.rows_of(personal, cohort),
    )  # fmt: skip
    personal = tree.with_rows(personal, cohort, trained.state)
    info = trained._replace(steps=2 * trained.steps).info()  # Both models train.
    return ApflState(sums.mean_of(trained.sums, w), *personal), info

  def deployed(state, data):
    return ClientModels(
      personal=_mix(state.client_alphas, state.client_params, state.params)
    )

  return Algorithm(local, init, step, deployed)


def _mix(alpha: jax.Array, v: Params, w: Params) -> Params:
  def mix(v: jax.Array, w: jax.Array) -> jax.Array:
    a = alpha.reshape(alpha.shape + (1,) * (v.ndim - alpha.ndim))
    return a * v + (1 - a) * w

  return jax.tree.map(mix, v, w)
