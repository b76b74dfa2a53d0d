"""Clients that add what they have not sent to what they send next."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import own_models
from fesem_jax.algorithms.common.wrapped import wrap
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.types import Params
from fesem_jax.training.residuals import residuals
from fesem_jax.utils.errors import UserError


class ErrorFeedbackState(NamedTuple):
  """State of `with_error_feedback`."""

  method: Any  # of the wrapped method
  residuals: Params  # [M, ...] what each client has not sent


def with_error_feedback(method: Algorithm) -> Algorithm:
  """Lets each client of a method keep what it has not sent (error feedback).

    sent  <- C(w - s + e)    w trained from s, and C what `local.sends` makes of it
    e     <- w - s + e - sent

  Seide et al. 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other
  Gradient Compression Schemes", ICML 2019. A client that is not drawn, drops out or
  fails keeps its residual e. It is M * P numbers on the devices. Before the first
  round, nothing is kept.

  Args:
    method: whose clients send one model in a round; its `local.sends` says what.

  Raises:
    UserError: when it starts, of a method whose clients send more models in a round, or
      only in some rounds.
  """

  def init(key, data, *cohort):
    params = jax.eval_shape(method.local.model.init, jax.random.key(0))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    held = own_models.repeat(method.local, zeros, data.num_clients, 'stacked')
    return ErrorFeedbackState(method.init(key, data, *cohort), held)

  def step(state, data, cohort, key):
    rows = tree.rows_of(state.residuals, cohort)
    with residuals(rows) as held:
      inner, info = method.step(state.method, data, cohort, key)
    if held.uses > 1:
      raise _undefined(method)
    new = tree.with_rows(state.residuals, cohort, held.rows)
    return ErrorFeedbackState(inner, new), info

  sent = method.traffic
  if sent is not None and sent.known is not None:
    known = sent.known
    sent = sent._replace(known=lambda state: known(state.method))
  of_unseen = method.of_unseen
  changes: dict[str, Any] = {'traffic': sent}
  if method.with_centers is None:
    changes['with_centers'] = None
  if of_unseen is not None:
    changes['of_unseen'] = lambda state, data: of_unseen(state.method, data)
  sends = method.local.sends
  if sends is not None:  # It is done: `simulate` adds none.
    changes['local'] = method.local._replace(sends=sends._replace(residual=False))
  return wrap(method, step, init=init, **changes)


def _undefined(method: Algorithm) -> UserError:
  named = method.local.sends.named if method.local.sends else 'sends'
  return UserError(
    f'Error feedback (`{named}`) is not defined for this method: its clients send '
    'several models in a round, or only in some rounds; choose '
    '`error_feedback=False`, or another method.'
  )
