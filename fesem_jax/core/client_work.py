"""Local work of each client: its learning rate, epochs or steps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.errors import check


class ClientWork:
  """Factors of the learning rate, and epochs or steps, of each client.

  Arrays [M] are in the order of the data; None leaves the schedule's.

  Attributes:
    rates: [M] float32 factors of each client's local updates.
    epochs: [M] int32.
    steps: [M] int32.
  """

  def __init__(
    self,
    rates: Sequence[float] | np.ndarray | None = None,
    epochs: Sequence[int] | np.ndarray | None = None,
    steps: Sequence[int] | np.ndarray | None = None,
  ):
    """Raises `UserError` on no arrays, both epochs and steps, or bad numbers."""
    check(epochs is None or steps is None, 'ClientWork: give epochs or steps, not both')
    self.rates = _checked('rates', rates, np.float32)
    self.epochs = _checked('epochs', epochs, np.int32)
    self.steps = _checked('steps', steps, np.int32)
    lengths = {len(x) for x in vars(self).values() if x is not None}
    check(len(lengths) == 1, f'ClientWork: needs one length; got {sorted(lengths)}')
    (self.num_clients,) = lengths

  def check(self, train: FederatedData, schedule: Schedule) -> None:
    """Raises `UserError` unless it fits the clients and the schedule."""
    count = int(np.asarray(train.client_ids).max(initial=-1)) + 1
    fits = count <= self.num_clients
    check(fits, f'ClientWork: has {self.num_clients} clients; the data have {count}')
    for name in ('epochs', 'steps'):
      values, most = getattr(self, name), getattr(schedule, name)
      fits = values is None or values.max() <= most
      check(fits, f'ClientWork: {name} exceed the {most} of the schedule')

  def rate_of(self, client_id: jax.Array, rate: jax.Array | None) -> jax.Array | None:
    """[] float32: `rate` [] times the factor of one client, by its id; None is 1."""
    if self.rates is None:
      return rate
    factor = jnp.asarray(self.rates).at[client_id].get(mode='fill', fill_value=1.0)
    return factor if rate is None else rate * factor

  def schedule_of(
    self, schedule: Schedule, client_ids: jax.Array
  ) -> tuple[jax.Array | int, jax.Array | int]:
    """Epochs and steps of clients, [S] int32 where listed, at most the schedule's."""

    def counts(values: np.ndarray | None, most: int) -> jax.Array | int:
      if values is None or not most:
        return most
      listed = jnp.asarray(values).at[client_ids].get(mode='fill', fill_value=most)
      return jnp.minimum(listed, most)

    return counts(self.epochs, schedule.epochs), counts(self.steps, schedule.steps)


def _checked(name: str, values: Any, dtype: Any) -> np.ndarray | None:
  """[M] numbers of a `dtype`; raises `UserError` unless they are positive."""
  if values is None:
    return None
  x = np.asarray(values, np.float64)
  right = (x > 0) & (x < 2**31) & ((dtype == np.float32) | (x == np.round(x)))
  kind = 'numbers' if dtype == np.float32 else 'integers'
  check(x.ndim == 1 and right.all(), f'ClientWork: {name} must be positive {kind}')
  return x.astype(dtype)
