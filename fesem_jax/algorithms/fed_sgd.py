"""FedSGD: one full-batch gradient step of the global model a round.

McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.core import traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError


def fed_sgd(local: LocalTraining) -> Algorithm:
  """Builds FedSGD.

    g_i <- grad F_i(c)                  for i in the cohort, all its examples
    c   <- c - eta sum_i alpha_i g_i

  With w_i = c - eta g_i that is c <- sum_i alpha_i w_i: FedAvg with one
  full-batch step.

  Args:
    local: how clients train; its batch size, epochs and steps serve only
      fine-tuning.

  Raises:
    UserError: see `one_gradient_step`.
  """
  sent = traffic.one_model(local, up='the gradient')._replace(whole_batches=True)
  return fed_avg(one_gradient_step(local))._replace(local=local, traffic=sent)


def one_gradient_step(local: LocalTraining) -> LocalTraining:
  """Local training of one step along the gradient of all the client's examples.

  Raises `UserError` if the optimizer's first step is not proportional to the gradient,
  as that of Adam is not: means of models are then not means of gradients.
  """
  shapes = jax.eval_shape(local.model.init, jax.random.key(0))

  def filled(value):
    return jax.tree.map(lambda s: jnp.full(s.shape, value, s.dtype), shapes)

  def first_step(gradient):
    state = local.optimizer.init(filled(1.0))
    return local.optimizer.update(filled(gradient), state, filled(1.0))[0]

  def proportional(factor):
    def same(once, more):
      return np.allclose(factor * once, more, rtol=1e-4, atol=0)

    return jax.tree.all(jax.tree.map(same, first_step(1.0), first_step(factor)))

  # A bound on the gradient's length may lie far above the first two.
  if not (proportional(2.0) and proportional(1e6)):
    raise UserError(
      'One gradient step a round (fed_sgd, or `variant=gradient`) needs '
      '`optimizer=sgd`: the step of this optimizer is not proportional to the gradient.'
    )
  return local._replace(schedule=Schedule(batch_size=0, steps=1))
