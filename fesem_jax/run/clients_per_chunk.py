"""Measures how many clients to train side by side (`clients_per_chunk=auto`)."""

import time

import jax
import numpy as np

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import sharding, tree
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from fesem_jax.data.arrangement import arrange_all
from fesem_jax.utils import processes

_STEPS = 6
_ROUNDS = 3

# Doubling on ends when the speed falls this far below the best so far.
_CLEARLY_SLOWER = 0.8


def clients_per_chunk(
  local: LocalTraining,
  train: FederatedData,
  clients_per_round: int = 0,
  data_placement: str = 'auto',
) -> int:
  """The fastest of 1, 2, 4, ... clients per chunk, by a few steps of training.

  It changes the speed of a run, never its results. The first clients of each device are
  trained; what they learn is not kept, and `local.clients_per_chunk` does not matter.
  `clients_per_round` is S; 0 is all clients. For `data_placement`, see `LocalTraining`.
  """
  most = -(-(clients_per_round or train.num_clients) // local.mesh.size)
  (train,) = arrange_all(local, train, data_placement=data_placement)
  rates: dict[int, float] = {}
  chunk = 1
  while chunk <= most:
    sized = local._replace(clients_per_chunk=chunk, clients_per_shared_start=chunk)
    try:
      rates[chunk] = _steps_per_second(sized, train)
    except jax.errors.JaxRuntimeError:  # Out of memory: so are all larger ones.
      if not rates or processes.count() > 1:  # Others may have had enough.
        raise
      break
    if rates[chunk] < _CLEARLY_SLOWER * max(rates.values()):
      break
    chunk *= 2
  return max(rates, key=lambda c: rates[c])


def _steps_per_second(local: LocalTraining, train: FederatedData) -> float:
  """Client steps per second, with two chunks of clients on each device."""
  batch_size = local.schedule.batch_size
  local = local._replace(schedule=Schedule(batch_size, steps=_STEPS), dropout_rate=0.0)
  devices = local.mesh.size
  count = 2 * local.clients_per_chunk * devices
  first = np.arange(devices) * (train.num_clients // devices)
  there = np.clip(len(train.info.names) - first, 1, train.num_clients // devices)
  ids = first[:, None] + np.arange(count // devices)[None] % there[:, None]
  cohort = Cohort(ids.reshape(-1).astype(np.int32), everyone=False)
  start = tree.expand(local.model.init(jax.random.key(0)))
  start = sharding.replicate(start, local.mesh)

  @jax.jit
  def run(start, train, key):
    state = global_model.GlobalState(start)
    mean, _ = global_model.train_and_average(
      local, state, train, cohort, key, Averaging('uniform')
    )
    return mean

  seconds = []
  for _ in range(_ROUNDS + 1):
    began = time.perf_counter()
    jax.block_until_ready(run(start, train, jax.random.key(1)))
    seconds.append(time.perf_counter() - began)
  rate = count * _STEPS / float(np.median(seconds[1:]))  # The first one compiled.
  return processes.from_first(lambda: rate)
