"""FedBuff's simulated arrivals: which updates fill the server's buffer next."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams, traffic
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traffic import Drawn, Sent, Traffic

_PAPER = 10  # Updates in a buffer (Nguyen et al. 2022).


class InTraining(NamedTuple):
  """The clients that train; there are places for C of M clients."""

  clients: jax.Array  # [C] int32 positions of those that train; M in an empty place
  left: jax.Array  # [C] float32 seconds until each has finished; 0 if empty
  durations: jax.Array  # [M] float32 seconds that each client takes


class Arrivals(NamedTuple):
  """The updates that fill a buffer, in the order of their arrival, and who trains."""

  ids: jax.Array  # [B] int32 positions of the clients, all distinct; M for none
  places: jax.Array  # [B] int32 places among the C in which they trained
  new: jax.Array  # [B] bool, for those that started while the buffer was filling
  running: InTraining  # from `seconds` on
  started: jax.Array  # [C] bool, for those that started while the buffer was filling
  seconds: jax.Array  # [] float32


def size_of(buffer_size: int, num_clients: int) -> int:
  return buffer_size or min(_PAPER, num_clients)


def next_arrivals(
  running: InTraining, data: FederatedData, key: jax.Array, buffer_size: int
) -> Arrivals:
  """The next updates in the order of arrival; others start and finish between them."""
  count, absent = running.clients.shape[0], data.num_clients
  key = prng_streams.fold(key, prng_streams.ARRIVALS)
  everyone = jnp.arange(absent, dtype=jnp.int32)
  idle = jnp.asarray(data.sizes() > 0).at[running.clients].set(False, mode='drop')

  def start(i, now, clients, finish, started, idle):
    draw = jax.vmap(jax.random.uniform)(
      data.keys_of(jax.random.fold_in(key, i), everyone)
    )
    _, order = jax.lax.top_k(-jnp.where(idle, draw, 2.0), count)
    empty = clients == absent
    rank = jnp.cumsum(empty) - 1
    fills = empty & (rank < idle.sum())
    clients = jnp.where(fills, order[rank], clients).astype(jnp.int32)
    later = now + running.durations.at[clients].get(mode='clip')
    idle = idle.at[jnp.where(fills, clients, absent)].set(False, mode='drop')
    return clients, jnp.where(fills, later, finish), started | fills, idle

  def arrive(i, carry):
    now, clients, finish, started, idle, ids, places, new = carry
    now_running = clients, finish, started, idle
    clients, finish, started, idle = jax.lax.cond(
      finish.min() > now, lambda: start(i, now, *now_running), lambda: now_running
    )
    place = finish.argmin()  # An empty one if no client is left.
    ids, places = ids.at[i].set(clients[place]), places.at[i].set(place)
    new = new.at[i].set(started[place])
    now = jnp.where(clients[place] < absent, finish[place], now)
    finish = finish.at[place].set(jnp.inf)
    clients, started = clients.at[place].set(absent), started.at[place].set(False)
    return now, clients, finish, started, idle, ids, places, new

  none = jnp.zeros(buffer_size, jnp.int32)
  carry = (
    jnp.float32(0.0), running.clients,
    jnp.where(running.clients < absent, running.left, jnp.inf),
    jnp.zeros(count, bool), idle, none, none, jnp.zeros(buffer_size, bool),
  )  # fmt: skip
  now, clients, finish, started, _, ids, places, new = jax.lax.fori_loop(
    0, buffer_size, arrive, carry
  )
  left = jnp.where(clients < absent, finish - now, 0.0)
  after = InTraining(clients, left, running.durations)
  return Arrivals(ids, places, new, after, started, now)


def traffic_of(local: LocalTraining, buffer_size: int, concurrency: int) -> Traffic:
  """Messages of FedBuff: as many models down as up, and C down at the start."""
  size = traffic.bytes_of_model(local)

  def round_costs(inputs, drawn: Drawn) -> Sent:
    # All clients are drawn, but only some receive a model.
    count = len(drawn.ids)
    return Sent(size * size_of(buffer_size, count) / count, size)

  def start_bytes(num_clients: int) -> tuple[float, float]:
    return size * (concurrency or num_clients), 0

  return Traffic(
    round_costs, start_bytes, inputs=lambda state: state.seconds, model=size, extras='',
    seconds=float,
  )  # fmt: skip
