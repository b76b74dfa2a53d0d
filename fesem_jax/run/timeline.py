"""A run's data on the devices, which may change at the beginning of some rounds."""

from typing import NamedTuple

import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.arrangement import arrange, order_of_clients
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.spec import Spec


class Data(NamedTuple):
  """The data of a run, as of a round."""

  train: FederatedData  # training split on the devices
  test: FederatedData  # test split on the devices
  on_host: FederatedData  # training split as the user gave it
  # Both splits of clients that take no part, as the user gave them, or None.
  unseen: tuple[FederatedData, FederatedData] | None
  places: np.ndarray  # [M] position on the devices of each client in the user's order
  placement: str  # 'replicated' or 'sharded'


def placement_of(spec: Spec) -> str:
  """'replicated' or 'sharded': where the data of a run are."""
  return placement.chosen(
    spec.data_placement,
    placement.bytes_of(spec.train, spec.test),
    spec.algorithm.local.mesh,
    everyone=not 0 < spec.clients_per_round < spec.train.num_clients,
  )


class Timeline:
  """The data of the present round; those of other phases are on the host.

  `placed` are the splits of round 1 on the devices, where they are there with those of
  other runs (`arrange_together`).
  """

  def __init__(
    self, spec: Spec, placed: tuple[FederatedData, FederatedData] | None = None
  ):
    self._local, self._now, self._phases = spec.algorithm.local, 0, spec.phases
    train, chosen = spec.train, placement_of(spec)
    places = np.argsort(order_of_clients(self._local, train))
    placed = placed or arrange(self._local, train, spec.test, chosen)
    self.data = Data(*placed, train, spec.unseen, places, chosen)

  def enter(self, number: int) -> bool:
    """Goes on to the phase of a round, counted from 1; returns whether data changed."""
    phase = max(i for i, p in enumerate(self._phases) if p.first_round <= number)
    if phase == self._now:
      return False
    self._now, (_, train, test) = phase, self._phases[phase]
    placed = arrange(self._local, train, test, self.data.placement)
    self.data = self.data._replace(train=placed[0], test=placed[1], on_host=train)
    return True
