"""Bytes of each round, and its estimated time on devices of a profile."""

from typing import Any

import numpy as np

from fesem_jax.core import traffic
from fesem_jax.core.traffic import Drawn, Traffic
from fesem_jax.evaluation import costs
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.training import device_profiles
from fesem_jax.utils import processes


class Costs(Callback):
  """Adds `bytes_down` and `bytes_up` to each record, and `costs` to the summary.

  Every run has one; pass your own to choose a profile. Records then also get
  `simulated_seconds`, None if the method does not report each client.

  Args:
    device_profile: a key of `device_profiles.PROFILES`; '' for no simulated time.
  """

  _traffic: Traffic
  _known: Any

  def __init__(self, device_profile: str = ''):
    self._name, self.wants_clients = device_profile, bool(device_profile)
    if device_profile:
      self._profile = device_profiles.profile(device_profile, 'device_profile')

  def on_start(self, event: Event) -> None:
    """Draws the clients' speeds."""
    train, local = event.arranged[0], event.algorithm.local
    self._real = len(train.info.names)
    self._traffic = traffic.as_sent(
      event.algorithm.traffic or traffic.one_model(local), local.sends
    )
    self._look(event.state)
    if self._name:
      self._devices = device_profiles.SimulatedDevices(
        self._profile, event.seed, local, train
      )

  def on_round(self, event: Event) -> None:
    """Counts the bytes of a round."""
    if 'bytes_up' in event.record or event.drawn is None or event.info is None:
      return  # Called again.
    ids = np.asarray(event.drawn.ids)
    drawn = Drawn(event.number, ids[ids < self._real], event.drawn.everyone)
    sent = traffic.Sent(0, 0)
    if len(drawn.ids):  # Methods tell what each client sends; there may be none.
      sent = self._traffic.round_costs(self._known, drawn)
    arrived = int(event.info.trained) + int(event.info.failed)
    event.record.update(costs.round_bytes(sent, drawn, arrived))
    if candidates := event.record.get('candidates'):
      for name, more in costs.candidate_bytes(sent, drawn, candidates).items():
        event.record[name] += more
    if event.number == 1:
      start = costs.start_bytes(self._traffic, self._real, self._known)
      event.record.update(start)
    self._look(event.state)
    if self._name:
      clients, whole = event.info.clients, self._traffic.whole_batches
      seconds = None
      if self._traffic.seconds is not None:
        seconds = self._traffic.seconds(self._known)
      elif clients is not None:
        seconds = self._devices.seconds(sent, clients, whole)
      event.record['simulated_seconds'] = seconds
      event.record['device_profile'] = self._name

  def on_end(self, event: Event) -> None:
    """Adds up all rounds."""
    assert event.result is not None
    event.summary['costs'] = costs.summary(event.result.history, self._name)

  def _look(self, state: Any) -> None:
    """Keeps the part of the state that the next messages depend on."""
    look = self._traffic.inputs
    self._known = processes.on_host(look(state)) if look else None
