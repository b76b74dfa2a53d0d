"""The devices of a federation's clients, and the time of each round on them."""

import numpy as np

from fesem_jax.core.algorithm import ClientRound
from fesem_jax.core.batching import batch_width
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traffic import Sent
from fesem_jax.results import device_profiles
from fesem_jax.results.device_profiles import DeviceProfile, Speeds, Work


class SimulatedDevices:
  """A device for each client, drawn once.

  Args:
    profile: that they are drawn from.
    seed: of the run.
    local: how clients train.
    train: training split as arranged.
  """

  def __init__(
    self, profile: DeviceProfile, seed: int, local: LocalTraining, train: FederatedData
  ):
    ids = np.asarray(train.client_ids)
    self._profile = profile
    self._speeds = device_profiles.speeds(profile, seed, ids)
    self._per_example = device_profiles.operations(local.model, train.example_shape)
    self._width = batch_width(local.schedule, train.max_examples)
    self._sizes, self._real = np.asarray(train.sizes()), len(train.info.names)

  def seconds(self, sent: Sent, clients: ClientRound, whole_batches: bool) -> float:
    """Seconds of a round; see `device_profiles.seconds`.

    Args:
      sent: by each client of the round.
      clients: what became of them.
      whole_batches: whether a step is on all examples of a client.
    """
    exist = np.asarray(clients.ids) < self._real
    here = np.asarray(clients.arrived)[exist]
    ids, steps = np.asarray(clients.ids)[exist], np.asarray(clients.steps)[exist]
    sizes = self._sizes[ids]
    batch = sizes if whole_batches else np.minimum(self._width, sizes)
    each = [sent.down, sent.up, steps * batch, sent.passes * sizes]
    work = (np.broadcast_to(np.asarray(x, float), ids.shape)[here] for x in each)
    own = Speeds(*(x[ids][here] for x in self._speeds))
    return device_profiles.seconds(self._profile, own, Work(*work), self._per_example)
