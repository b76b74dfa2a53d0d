"""FedBuff: asynchronous rounds, a server update for each buffer of client updates.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022
(Algorithm 1).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.own_centers import check_everyone
from fesem_jax.cohorts import device_profiles
from fesem_jax.cohorts.device_profiles import DeviceProfile
from fesem_jax.cohorts.sampling import client_keys, cohort_of
from fesem_jax.core import prng_streams, sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traffic import Drawn, Sent, Traffic
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.trained import WEIGHTINGS
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_choice,
  check_positive,
)

_PAPER = 10  # Updates in a buffer.


class FedBuffState(NamedTuple):
  """State of FedBuff after a server update; C clients train at a time."""

  params: Params  # [1, ...] w
  version: jax.Array  # [] int32 server updates so far
  clients: jax.Array  # [C] int32 positions of those that train; M in an empty place
  starts: Params  # [C, ...] the model that each of them received
  versions: jax.Array  # [C] int32 version of this model
  left: jax.Array  # [C] float32 seconds until each has finished; 0 if empty
  durations: jax.Array  # [M] float32 seconds that each client takes
  seconds: jax.Array  # [] float32 that the last buffer took to fill


class Arrivals(NamedTuple):
  """The updates that fill a buffer, in the order of their arrival, and who trains."""

  ids: jax.Array  # [B] int32 positions of the clients, all distinct; M for none
  places: jax.Array  # [B] int32 places among the C in which they trained
  new: jax.Array  # [B] bool, for those that started while the buffer was filling
  clients: jax.Array  # [C] as in the state
  left: jax.Array  # [C] likewise, from `seconds` on
  started: jax.Array  # [C] bool, for those that started while the buffer was filling
  seconds: jax.Array  # [] float32


def fed_buff(
  local: LocalTraining,
  *,
  buffer_size: int = 0,
  concurrency: int = 0,
  server_learning_rate: float = 1.0,
  weighting: str = 'uniform',
  client_devices: str | DeviceProfile = 'phone',
) -> Algorithm:
  """Builds FedBuff, of which a round is one update of the server.

    the next B updates D_i = w_i - w_(t - tau_i) arrive, w_i <- SGD from w_(t - tau_i)
    w_(t+1) <- w_t + eta_g sum_i alpha_i D_i / sqrt(1 + tau_i)           alpha_i = 1 / B

  At any time C clients train. Each takes the seconds of its own device to receive a
  model, train and send its update. When it has sent it, another one starts from the
  present w: any that neither trains nor has an update in the buffer, so that a buffer
  has updates of B clients. tau_i is the number of server updates since client i
  started. Updates that arrive at one time arrive before others start; if all devices
  are alike and C = B = M, it is FedAvg.

  Args:
    local: how clients train.
    buffer_size: B, called K in the paper; 0 is the paper's 10, or all clients if they
      are fewer.
    concurrency: C; 0 is all clients. The models that C clients received are stored.
    server_learning_rate: eta_g.
    weighting: 'uniform' (alpha_i above) or 'by_examples' (alpha_i = n_i / sum_j n_j),
      'by_weight'.
    client_devices: profile of the devices, one of `device_profiles.PROFILES`, which
      determines when updates arrive.

  Raises:
    UserError: on an option outside its range; or, when it starts, on a buffer of more
      clients than there are.
  """
  check_at_least(0, buffer_size=buffer_size, concurrency=concurrency)
  check_positive(server_learning_rate=server_learning_rate)
  check_choice('weighting', weighting, WEIGHTINGS)
  devices = client_devices
  if isinstance(devices, str):
    check_choice('client_devices', devices, tuple(device_profiles.PROFILES))
    devices = device_profiles.PROFILES[devices]

  def init(key, data):
    real = len(data.info.names)
    for name, count in ('buffer_size', buffer_size), ('concurrency', concurrency):
      if count > real:
        raise UserError(f'{argument(name, count)} is more than the {real} clients.')
    params = tree.expand(local.model.init(key))
    count = concurrency or real
    starts = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), params)
    return FedBuffState(
      params,
      version=jnp.int32(0),
      clients=jnp.full(count, data.num_clients, jnp.int32),
      starts=starts,
      versions=jnp.zeros(count, jnp.int32),
      left=jnp.zeros(count),
      durations=device_profiles.durations(devices, local, data, key),
      seconds=jnp.float32(0.0),
    )

  def step(state, data, cohort, key):
    check_everyone(cohort, 'fed_buff', 'its clients come and go (`concurrency`)')
    w = state.params
    size = _size(buffer_size, len(data.info.names))
    found = next_arrivals(state, data, key, size)
    received = tree.take(state.starts, found.places)
    received = tree.where(found.new, tree.take(w, jnp.zeros_like(found.ids)), received)
    staleness = state.version - state.versions[found.places]
    factors = 1 / jnp.sqrt(1.0 + jnp.where(found.new, 0, staleness))
    row = jnp.zeros(data.num_clients + 1, jnp.int32)
    row = row.at[found.ids].set(jnp.arange(size, dtype=jnp.int32))
    client_ids = jnp.asarray(data.client_ids)
    client_ids = client_ids.at[found.ids].get(mode='fill', fill_value=-1)
    mine = cohort_of(client_ids, data, local.mesh, cohort.round)
    zero = tree.zeros_like(w)
    reduction = Reduction(
      functools.partial(_add_changes, weighting), sums.no_sums(w), (row, factors),
      keep=False,
    )  # fmt: skip
    models = ClientModels(received, row[mine.ids])
    trained = train_cohort(local, models, data, mine, key, reduction)
    mean, eta = sums.mean_of(trained.sums, zero), variable(server_learning_rate)
    new = jax.tree.map(lambda w, change: w + eta * change, w, mean)
    received_now = tree.take(w, jnp.zeros_like(found.clients))
    starts = tree.where(found.started, received_now, state.starts)
    versions = jnp.where(found.started, state.version, state.versions)
    state = FedBuffState(
      new, state.version + 1, found.clients, starts, versions, found.left,
      state.durations, found.seconds,
    )  # fmt: skip
    return state, trained.info()

  sent = _traffic(local, buffer_size, concurrency)
  return Algorithm(local, init, step, global_model.deployed, traffic=sent)


def _size(buffer_size: int, num_clients: int) -> int:
  """B, of the clients that exist."""
  return buffer_size or min(_PAPER, num_clients)


def next_arrivals(
  state: FedBuffState, data: FederatedData, key: jax.Array, buffer_size: int
) -> Arrivals:
  """Lets clients finish and others start until the buffer is full."""
  count, nobody = state.clients.shape[0], data.num_clients
  key = prng_streams.fold(key, prng_streams.ARRIVALS)
  everyone = jnp.arange(nobody, dtype=jnp.int32)
  idle = jnp.asarray(data.sizes() > 0).at[state.clients].set(False, mode='drop')

  def start(i, now, clients, finish, started, idle):
    draw = jax.vmap(jax.random.uniform)(
      client_keys(jax.random.fold_in(key, i), data, everyone)
    )
    _, order = jax.lax.top_k(-jnp.where(idle, draw, 2.0), count)
    empty = clients == nobody
    rank = jnp.cumsum(empty) - 1
    fills = empty & (rank < idle.sum())
    clients = jnp.where(fills, order[rank], clients).astype(jnp.int32)
    later = now + state.durations.at[clients].get(mode='clip')
    idle = idle.at[jnp.where(fills, clients, nobody)].set(False, mode='drop')
    return clients, jnp.where(fills, later, finish), started | fills, idle

  def arrive(i, carry):
    now, clients, finish, started, idle, ids, places, new = carry
    running = clients, finish, started, idle
    clients, finish, started, idle = jax.lax.cond(
      finish.min() > now,
      lambda: start(i, now, *running),
      lambda: running,
    )
    place = finish.argmin()  # An empty one if nobody is left.
    ids, places = ids.at[i].set(clients[place]), places.at[i].set(place)
    new = new.at[i].set(started[place])
    now = jnp.where(clients[place] < nobody, finish[place], now)
    finish = finish.at[place].set(jnp.inf)
    clients, started = clients.at[place].set(nobody), started.at[place].set(False)
    return now, clients, finish, started, idle, ids, places, new

  none = jnp.zeros(buffer_size, jnp.int32)
  carry = (
    jnp.float32(0.0), state.clients,
    jnp.where(state.clients < nobody, state.left, jnp.inf),
    jnp.zeros(count, bool), idle, none, none, jnp.zeros(buffer_size, bool),
  )  # fmt: skip
  now, clients, finish, started, _, ids, places, new = jax.lax.fori_loop(
    0, buffer_size, arrive, carry
  )
  left = jnp.where(clients < nobody, finish - now, 0.0)
  return Arrivals(ids, places, new, clients, left, started, now)


def _add_changes(weighting, trained, starts, total, known):
  """Adds the changes of a chunk's models, smaller the staler they are."""
  row, factors = known
  own = factors[row[trained.ids]]

  def change(x, start):
    return own.reshape(-1, *[1] * (x.ndim - 1)) * (x - start[starts.choice])

  changes = jax.tree.map(change, trained.params, starts.shared)
  zero = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), starts.shared)
  weights = trained.weights(weighting)
  return None, sums.add_to_one(total, changes, weights, zero)


def _traffic(local: LocalTraining, buffer_size: int, concurrency: int) -> Traffic:
  """Messages of FedBuff: as many models down as up, and C down at the start."""
  size = traffic.bytes_of_model(local)

  def of_round(known, drawn: Drawn) -> Sent:
    # All clients are drawn, of which some receive a model.
    count = len(drawn.ids)
    return Sent(size * _size(buffer_size, count) / count, size)

  def of_start(num_clients: int) -> tuple[float, float]:
    return size * (concurrency or num_clients), 0

  words = (
    'the global model, to each client that starts',
    'the change of the model',
    'the first model, to those that start',
  )
  return Traffic(
    words, of_round, of_start, known=lambda state: state.seconds, model=size, beside='',
    seconds=float,
  )  # fmt: skip
