"""Local work of each client: its learning rate, epochs or steps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once

_EXCLUDE = 'Epochs of `ClientWork` and steps of the schedule exclude each other.'


class ClientWork:
  """Factors of the learning rate, and epochs or steps, of each client.

  Attributes:
    rates: [M] float32 factors of each client's local updates; None is 1.
    epochs: [M] int32 in place of the schedule's epochs; None is these.
    steps: [M] int32 in place of the schedule's steps; None is these.
  """

  def __init__(
    self,
    rates: Sequence[float] | np.ndarray | None = None,
    epochs: Sequence[int] | np.ndarray | None = None,
    steps: Sequence[int] | np.ndarray | None = None,
  ):
    """Checks arrays [M] in the order in which the data give the clients.

    Raises:
      UserError: if all are None, both epochs and steps are given, or one is not of
        positive numbers, whole ones of epochs and steps, or of another length.
    """
    if epochs is not None and steps is not None:
      raise UserError('`ClientWork`: epochs and steps exclude each other.')
    self.rates = _checked('rates', rates, np.float32)
    self.epochs = _checked('epochs', epochs, np.int32)
    self.steps = _checked('steps', steps, np.int32)
    fields = vars(self).items()
    named = {name: x for name, x in fields if x is not None}
    if len({len(x) for x in named.values()}) != 1:
      lengths = ', '.join(f'{len(x)} {name}' for name, x in named.items())
      raise UserError(
        '`ClientWork` needs one value of each kind for each client; it has '
        f'{lengths or "none"}.'
      )
    self.num_clients = len(next(iter(named.values())))

  def check(self, train: FederatedData) -> None:
    """Raises `UserError` unless there are the clients of a training split."""
    most = int(np.asarray(train.client_ids).max(initial=-1))
    if most >= self.num_clients:
      raise UserError(
        f'`ClientWork` is of {self.num_clients} clients, but the data have a client of '
        f'number {most} (from 0); give each client of the data one value.'
      )
    if most + 1 < self.num_clients:
      warn_once(
        f'`ClientWork` is of {self.num_clients} clients, but the last client of the '
        f'data has number {most} (from 0); values after it are of no client.'
      )

  def check_schedule(self, schedule: Schedule) -> None:
    """Raises `UserError` if a client has more epochs or steps than the schedule."""
    if self.epochs is not None and schedule.steps:
      raise UserError(_EXCLUDE)
    for name in ('epochs', 'steps'):
      own, most = getattr(self, name), getattr(schedule, name)
      if own is not None and own.max() > most:
        raise UserError(
          f'`ClientWork` has a client of {own.max()} {name}, more than the {most} of '
          f'the schedule; set {name}={own.max()} there, which all others do.'
        )

  def rate_of(self, client_id: jax.Array, rate: jax.Array | None) -> jax.Array | None:
    """[] float32: the factor `rate` [] of all clients times that of one; None is 1.

    `client_id` [] int32 is one of `FederatedData.client_ids`; clients that are not
    among the M have no factor of their own.
    """
    if self.rates is None:
      return rate
    own = jnp.asarray(self.rates).at[client_id].get(mode='fill', fill_value=1.0)
    return own if rate is None else rate * own

  def longest(self, schedule: Schedule) -> Schedule:
    """The schedule of the client with most work.

    Raises `UserError` on epochs of clients where the schedule counts steps.
    """
    if self.epochs is not None and schedule.steps:
      raise UserError(_EXCLUDE)
    if self.epochs is not None:
      schedule = schedule._replace(epochs=int(self.epochs.max()))
    if self.steps is not None:
      schedule = schedule._replace(steps=int(self.steps.max()))
    return schedule

  def schedule_of(
    self, schedule: Schedule, client_ids: jax.Array
  ) -> tuple[jax.Array | int, jax.Array | int]:
    """Epochs and steps of clients, [S] int32 where they are given.

    They are never more than the schedule's, which is that of all who are not among the
    M; epochs of clients do not count where the schedule counts steps.
    """

    def of(given: np.ndarray | None, most: int) -> jax.Array | int:
      if given is None or not most:
        return most
      own = jnp.asarray(given).at[client_ids].get(mode='fill', fill_value=most)
      return jnp.minimum(own, most)

    return of(self.epochs, schedule.epochs), of(self.steps, schedule.steps)


def _checked(name: str, given: Any, dtype: Any) -> np.ndarray | None:
  """[M] `given` numbers of a `dtype`; raises `UserError`, naming the argument."""
  if given is None:
    return None
  try:
    values = np.asarray(given, np.float64)
  except (TypeError, ValueError) as e:
    raise UserError(
      f'`ClientWork`: {name} must be numbers, one for each client.'
    ) from e
  if values.ndim != 1 or not values.size:
    raise UserError(
      f'`ClientWork`: {name} has shape {values.shape}; give each client one number.'
    )
  whole = dtype == np.int32
  bad = ~np.isfinite(values) | (values <= 0) | (values >= 2**31)
  if whole:
    bad |= values != np.round(values)
  if bad.any():
    first = int(np.flatnonzero(bad)[0])
    raise UserError(
      f'`ClientWork`: entry {first} (from 0) of {name} is {values[first]:g}; give '
      f'positive {"whole " if whole else ""}numbers.'
    )
  return values.astype(dtype)
