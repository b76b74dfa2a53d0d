"""Which center each client of a round starts from: its own, or that of least loss."""

import jax
import jax.numpy as jnp

from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training.client_losses import least_loss


def starting_centers(
  local: LocalTraining,
  centers: Params,
  own: jax.Array,
  data: FederatedData,
  cohort: Cohort,
  number: jax.Array,
  *,
  seen: jax.Array | None = None,
  max_age: int = 0,
  loss_check: jax.Array | None = None,
) -> jax.Array:
  """[S] int32 the center that each client starts from.

  That is its own, but the center of least training loss for every client in a round
  that checks losses, for clients that last took part more than `max_age` rounds ago,
  and for those that never took part.

  Args:
    local: how clients train.
    centers: [K, ...].
    own: [S] int32 clusters of the cohort.
    data: training split.
    cohort: S clients.
    number: [] int32 of the round, counted from 1.
    seen: [S] int32 round in which each client last took part, 0 the start, -1 never;
      None if all took part in the start and ages do not matter.
    max_age: 0 is no limit.
    loss_check: [] bool whether the round checks losses; None if no round does.
  """
  if seen is None and loss_check is None:
    return own
  by_loss = jnp.zeros(own.shape, bool)
  if loss_check is not None:
    by_loss |= loss_check
  if seen is not None:
    by_loss |= seen < 0
    if max_age:
      by_loss |= number - seen > variable(max_age)

  def choose():
    return jnp.where(by_loss, least_loss(local, centers, data, cohort), own)

  return jax.lax.cond(by_loss.any(), choose, lambda: own)
