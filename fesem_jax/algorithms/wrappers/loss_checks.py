"""In some rounds, clients start from the center with the lowest training loss."""

import jax.numpy as jnp

from fesem_jax.algorithms.common.wrapped import (
  check_wrappable,
  inner,
  number_of,
  own_of,
  starting_from,
  step_from,
)
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.made_by import recorded
from fesem_jax.core.traffic import Traffic, with_choices
from fesem_jax.training.client_losses import start_by_loss
from fesem_jax.utils.ranges import Count


@recorded
def with_loss_checks(method: Algorithm, every: Count) -> Algorithm:
  """Lets clients start from the center of least training loss in some rounds.

  A client stays near the center that it starts from, so distances to centers do not
  find out that it started from a wrong one; its losses do.

  Args:
    method: a method with centers.
    every: clients start from the center of least training loss, IFCA's rule, in every
      so many rounds. A round with `Cohort.keep_clusters` is none.

  Raises:
    UserError: on a method without centers.
  """
  check_wrappable(method, 'loss_check_every', trains=True)

  def starts_of(state, data, cohort):
    own, check = own_of(state, cohort), number_of(state) % variable(every) == 0
    if cohort.keep_clusters is not None:
      check &= ~cohort.keep_clusters
    centers, by_loss = inner(state).centers, jnp.broadcast_to(check, own.shape)
    return start_by_loss(method.local, centers, own, by_loss, data, cohort)

  def train(local, state, data, cohort, key, reduction):
    state = starting_from(state, cohort, starts_of(state, data, cohort))
    assert method.train is not None
    return method.train(local, state, data, cohort, key, reduction)

  def step(state, data, cohort, key):
    starts = starts_of(state, data, cohort)
    return step_from(method, state, starts, data, cohort, key)

  return method._replace(
    step=step, train=train, traffic=_with_checks(method.traffic, every)
  )


def _with_checks(traffic: Traffic | None, every: int) -> Traffic | None:
  """The traffic, where clients choose among all centers in some rounds."""
  if traffic is None:
    return None
  of_round = traffic.of_round

  def with_checks(known, drawn):
    check = drawn.number % every == 0 and not drawn.keep_clusters
    return of_round(known, drawn.choosing(check))

  return with_choices(traffic._replace(of_round=with_checks))
