"""FedBuff against an event queue in float64, and its limits."""

import heapq

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.core import prng_streams
from fesem_jax.core.traffic import Drawn, as_sent, bytes_of_model, one_model
from fesem_jax.training import device_profiles
from fesem_jax.training.compression import compression
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_training,
  run,
)
from tests.support.nights import rest_by_night

PLANTED = np.array([1.0307, 10.3113, 2.1749, 0.9131, 1.7337, 3.3721])


class Queue:
  """Clients that train, and the server, written from the paper's Algorithm 1."""

  def __init__(self, data, local, like, size, at_once, eta):
    self.data, self.local, self.like = data, local, like
    self.size, self.at_once, self.eta = size, at_once, eta
    self.w, self.version, self.time = reference.flat(like), 0, 0.0
    self.queue, self.buffer, self.staleness = [], [], []

  def start(self, key):
    """Fills free places by the clients of the least draws."""
    key = jax.random.fold_in(key, prng_streams.ARRIVALS)
    key = jax.random.fold_in(key, len(self.buffer))
    busy = {entry[1] for entry in self.queue} | {i for i, *_ in self.buffer}
    idle = [i for i in range(len(SIZES)) if i not in busy]
    draws = {i: float(jax.random.uniform(jax.random.fold_in(key, i))) for i in idle}
    for i in sorted(idle, key=draws.get)[: self.at_once - len(self.queue)]:
      entry = self.time + PLANTED[i], i, self.version, self.w
      heapq.heappush(self.queue, entry)

  def round(self, number):
    key, began = jax.random.fold_in(jax.random.key(9), number), self.time
    self.buffer = []
    train = reference_training(self.local, self.data, self.like, key)
    self.start(key)
    while True:
      self.time, i, version, start = heapq.heappop(self.queue)
      self.buffer.append((i, self.version - version, train(i, start) - start))
      if len(self.buffer) == self.size:
        break
      self.start(key)
    for _, tau, change in self.buffer:
      self.w = self.w + self.eta / self.size * change / np.sqrt(1 + tau)
      self.staleness.append(tau)
    self.version += 1
    return self.time - began


@pytest.mark.parametrize(
  ('size', 'at_once', 'eta', 'devices'),
  rest_by_night([(2, 3, 0.7, 1), (4, 6, 1.0, 2)]),
)
def test_matches_an_event_queue(size, at_once, eta, devices):
  local, data = helpers.local(devices=devices), federation()
  algorithm = algorithms.build(
    'fed_buff', local, buffer_size=size, concurrency=at_once, server_learning_rate=eta
  )
  state = initial(algorithm, data)
  running = state.running._replace(durations=np.float32(PLANTED))
  state = state._replace(running=running)
  like = reference.from_params(state.params, 0)
  queue = Queue(data, local, like, size, at_once, eta)
  step, everyone = jax.jit(algorithm.step), helpers.everyone(data)
  for number in range(1, 8):
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(jax.device_get(state), data, everyone, key)
    seconds = queue.round(number)
    np.testing.assert_allclose(state.seconds, seconds, rtol=1e-5)
    ids = np.asarray(info.clients.ids)
    assert sorted(ids[ids < 6].tolist()) == sorted(i for i, *_ in queue.buffer)
    assert int(info.trained) == size
  assert max(queue.staleness) >= 2  # Client 1 is slow.
  assert_close(reference.vectors(state.params)[0], queue.w, rtol=1e-3)


@pytest.mark.parametrize(
  'changes',
  [{}, {'sends': compression('top_k(0.1)')}],
  ids=['plain', 'compressed'],
)
def test_durations_are_those_of_the_simulated_devices_of_other_methods(changes):
  local = helpers.local(epochs=3)._replace(**changes)
  data = helpers.federation(SIZES)
  # So slow that the work of such a small model takes time.
  profile, seed = device_profiles.DeviceProfile(12.5e6, 2.5e6, 1e6, 1.0, 0.5), 7
  key = prng_streams.fold(jax.random.key(seed), prng_streams.INIT)
  result = np.asarray(device_profiles.durations(profile, local, data, key))
  costs = device_profiles.SimulatedDevices(profile, seed, local, data)
  _, [info] = run(algorithms.build('fed_avg', local), data, rounds=1)
  size, traffic = bytes_of_model(local), as_sent(one_model(local), local.sends)
  of_one = traffic.round_costs(None, Drawn(1, np.arange(6), everyone=True))
  assert (of_one.up < size) == bool(changes)
  for i in range(len(SIZES)):
    alone = jax.tree.map(lambda x, i=i: np.asarray(x)[[i]], info.clients)
    expected = costs.seconds(of_one, alone, whole_batches=False)
    np.testing.assert_allclose(result[i], expected, rtol=1e-5)


def test_records_have_the_seconds_of_the_buffer_and_the_bytes_that_are_sent():
  local, data = helpers.local(), helpers.federation(SIZES)
  algorithm = algorithms.build('fed_buff', local, buffer_size=2, concurrency=4)
  seconds = []

  class Seconds(fj.Callback):
    def on_round(self, event):
      seconds.append(float(event.state.seconds))

  result = fj.simulate(
    algorithm, data, data, rounds=3, finetune_epochs=0,
    callbacks=[fj.callbacks.Costs('phone'), Seconds()],
  )  # fmt: skip
  records, size = result.history[-3:], bytes_of_model(local)
  assert [r['simulated_seconds'] for r in records] == seconds
  assert min(seconds) > 0
  assert [(r['bytes_down'], r['bytes_up']) for r in records] == [(2 * size,) * 2] * 3
  assert records[0]['start_bytes_down'] == 4 * size
  total = result.summary['costs']['simulated_seconds']
  assert total == pytest.approx(sum(seconds))
