"""FedSGD: one full-batch gradient step of the global model a round."""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.core import traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.plain_sgd import is_linear
from fesem_jax.utils.errors import check


@recorded
def fed_sgd(local: LocalTraining) -> Algorithm:
  """Builds FedSGD (McMahan et al., AISTATS 2017; see `fed_avg`).

    g_i <- grad F_i(c)                  for i in the cohort, all its examples
    c   <- c - eta sum_i alpha_i g_i

  With w_i = c - eta g_i that is c <- sum_i alpha_i w_i: FedAvg with one
  full-batch step.

  Args:
    local: settings of local training; its batch size, epochs and steps serve only
      fine-tuning.

  Raises:
    UserError: unless the first step is linear in the gradient: else means of models
      are not means of gradients.
  """
  linear = _first_step_is_linear(local)
  check(linear, 'optimizer: one gradient step a round needs a linear step, as of SGD')
  one_step = local._replace(schedule=Schedule(batch_size=0, steps=1))
  sent = traffic.one_model(local)._replace(whole_batches=True)
  fields = fed_avg(one_step)._asdict()
  return Algorithm(**fields | {'local': local, 'traffic': sent})


def _first_step_is_linear(local: LocalTraining) -> bool:
  shapes = jax.eval_shape(local.model.init, jax.random.key(0))

  def filled(value: float) -> Params:
    return jax.tree.map(lambda s: jnp.full(s.shape, value, s.dtype), shapes)

  def first_step(gradient: Params) -> Params:
    params = filled(1.0)
    return local.optimizer.update(gradient, local.optimizer.init(params), params)[0]

  if not is_linear(first_step, shapes):
    return False
  # The step may also have a part that does not depend on the gradient.
  return not any((x != 0).any() for x in jax.tree.leaves(first_step(filled(0.0))))
