"""FedBuff: asynchronous; the server updates when a buffer is full."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.arrivals import (
  InTraining,
  next_arrivals,
  size_of,
  traffic_of,
)
from fesem_jax.algorithms.common.cluster_averaging import check_everyone
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import cohort_of
from fesem_jax.core.types import Params
from fesem_jax.training import device_profiles
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.device_profiles import DeviceProfile
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index, Positive


class FedBuffState(NamedTuple):
  params: Params  # [1, ...] w
  version: jax.Array  # [] int32 server updates so far
  running: InTraining  # who trains
  starts: Params  # [C, ...] the model that each of them received
  versions: jax.Array  # [C] int32 version of this model
  seconds: jax.Array  # [] float32 that the last buffer took to fill


@recorded
def fed_buff(
  local: LocalTraining,
  *,
  buffer_size: Index = 0,
  concurrency: Index = 0,
  server_learning_rate: Positive = 1.0,
  client_devices: str | DeviceProfile = 'phone',
) -> Algorithm:
  """Builds FedBuff, whose rounds are updates of the server (Nguyen et al.,
  "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022:
  Algorithm 1).

    the next B updates D_i = w_i - w_(t - tau_i) arrive, w_i <- SGD from w_(t - tau_i)
    w_(t+1) <- w_t + eta_g sum_i alpha_i D_i / sqrt(1 + tau_i)           alpha_i = 1 / B

  At any time C clients train. Each takes the seconds of its own device to receive a
  model, train and send its update; then one that neither trains nor has an update in
  the buffer starts from the present w. tau_i is the number of server updates since
  client i started. If all devices are alike and C = B = M, it is FedAvg.

  Args:
    buffer_size: B, called K in the paper; 0 is the paper's 10, or all clients if they
      are fewer.
    concurrency: C; 0 is all clients. The models that C clients received are stored.
    server_learning_rate: eta_g.
    client_devices: profile of the devices, one of `device_profiles.PROFILES`, which
      determines when updates arrive.

  Raises:
    UserError: on a model with BatchNorm; or, when it starts, on a buffer of more
      clients than there are.
  """
  local.check_no_statistics('fed_buff')
  devices = device_profiles.profile(client_devices, 'client_devices')

  def init(key, data):
    real = len(data.info.names)
    check(buffer_size <= real, f'buffer_size: more than the {real} clients')
    check(concurrency <= real, f'concurrency: more than the {real} clients')
    params = tree.expand(local.model.init(key))
    count = concurrency or real
    starts = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), params)
    absent = jnp.full(count, data.num_clients, jnp.int32)
    durations = device_profiles.durations(devices, local, data, key)
    running = InTraining(absent, jnp.zeros(count), durations)
    return FedBuffState(
      params, jnp.int32(0), running, starts, jnp.zeros_like(absent), jnp.float32(0.0)
    )

  def step(state, data, cohort, key):
    check_everyone(cohort, 'fed_buff')
    w = state.params
    size = size_of(buffer_size, len(data.info.names))
    arrivals = next_arrivals(state.running, data, key, size)
    received = tree.take(state.starts, arrivals.places)
    first = jnp.zeros_like(arrivals.ids)
    received = tree.where(arrivals.new, tree.take(w, first), received)
    staleness = state.version - state.versions[arrivals.places]
    factors = 1 / jnp.sqrt(1.0 + jnp.where(arrivals.new, 0, staleness))
    row = jnp.zeros(data.num_clients + 1, jnp.int32)
    row = row.at[arrivals.ids].set(jnp.arange(size, dtype=jnp.int32))
    client_ids = jnp.asarray(data.client_ids)
    client_ids = client_ids.at[arrivals.ids].get(mode='fill', fill_value=-1)
    arrived = cohort_of(client_ids, data, local.mesh, cohort.round)
    zero = tree.zeros_like(w)
    reduction = Reduction(_add_changes, sums.no_sums(w), (row, factors), keep=False)
    models = ClientModels(received, row[arrived.ids])
    trained = train_cohort(local, models, data, arrived, key, reduction)
    mean, eta = sums.mean_of(trained.sums, zero), variable(server_learning_rate)
    new = jax.tree.map(lambda w, change: w + eta * change, w, mean)
    started, now = arrivals.started, state.version
    starts = jax.tree.map(lambda w, x: jnp.broadcast_to(w, x.shape), w, state.starts)
    starts = tree.where(started, starts, state.starts)
    versions = jnp.where(started, now, state.versions)
    state = FedBuffState(
      new, now + 1, arrivals.running, starts, versions, arrivals.seconds
    )
    return state, trained.info()

  sent = traffic_of(local, buffer_size, concurrency)
  return Algorithm(local, init, step, global_model.deployed, traffic=sent)


def _add_changes(trained, starts, total, broadcast):
  """Adds the changes of a chunk's models, scaled by their staleness."""
  row, factors = broadcast
  client_factors = factors[row[trained.ids]]

  def change(x, start):
    return client_factors.reshape(-1, *[1] * (x.ndim - 1)) * (x - start[starts.choice])

  changes = jax.tree.map(change, trained.params, starts.shared)
  zero = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), starts.shared)
  weights = trained.weights('uniform')
  return None, sums.add_to_one(total, changes, weights, zero)
