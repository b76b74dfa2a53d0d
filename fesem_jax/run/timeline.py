"""A run's data on the devices, which may change at the beginning of some rounds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data import placement
from fesem_jax.data.arrangement import arrange, order_of_clients
from fesem_jax.data.phases import Phase


class Data(NamedTuple):
  """The data of a run, as of a round."""

  train: FederatedData  # training split on the devices
  test: FederatedData  # test split on the devices
  on_host: FederatedData  # training split as the user gave it
  # Both splits of clients that take no part, as the user gave them, or None.
  unseen: tuple[FederatedData, FederatedData] | None
  places: np.ndarray  # [M] position on the devices of each client in the user's order
  placement: str  # 'replicated' or 'sharded'


def placement_of(
  local: LocalTraining,
  train: FederatedData,
  test: FederatedData,
  data_placement: str,
  clients_per_round: int,
) -> str:
  """'replicated' or 'sharded'; for `data_placement`, see `LocalTraining`."""
  return placement.chosen(
    data_placement,
    placement.bytes_of(train, test),
    local.mesh,
    everyone=not 0 < clients_per_round < train.num_clients,
  )


class Timeline:
  """The data of the present round; those of other phases are on the host.

  `local` decides the clients' order and the devices, and `phases` begin with that of
  round 1. For `unseen`, see `Data`, and for the other arguments, `simulate`. `placed`
  are the splits of round 1 on the devices, where they are there with those of other
  runs (`arrange_together`).
  """

  def __init__(
    self,
    local: LocalTraining,
    phases: Sequence[Phase],
    unseen: tuple[FederatedData, FederatedData] | None,
    data_placement: str,
    clients_per_round: int,
    placed: tuple[FederatedData, FederatedData] | None = None,
  ):
    self._local, self._now, self.phases = local, 0, phases
    _, train, test = phases[0]
    chosen = placement_of(local, train, test, data_placement, clients_per_round)
    places = np.argsort(order_of_clients(local, train))
    placed = placed or arrange(local, train, test, chosen)
    self.data = Data(*placed, train, unseen, places, chosen)

  def enter(self, number: int) -> bool:
    """Goes on to the phase of a round, counted from 1; returns whether data changed."""
    phase = max(i for i, p in enumerate(self.phases) if p.first_round <= number)
    if phase == self._now:
      return False
    self._now, (_, train, test) = phase, self.phases[phase]
    placed = arrange(self._local, train, test, self.data.placement)
    self.data = self.data._replace(train=placed[0], test=placed[1], on_host=train)
    return True
