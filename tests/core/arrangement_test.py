"""Which clients a round has, and in what order devices hold them."""

import types

import jax
import numpy as np
import pytest

from fesem_jax.core import arrangement, placement, prng_streams, sampling, sharding
from fesem_jax.utils import processes
from tests.support import helpers

SIZES = [3, 9, 1, 5, 2]


def padded(num_clients=8):
  return helpers.federation(SIZES).reorder(np.arange(5), num_clients=num_clients)


def test_clients_are_padded_to_a_multiple_of_8_and_of_the_devices():
  one, two = sharding.client_mesh(1), sharding.client_mesh(2)
  for count, expected in ((1, 8), (8, 8), (9, 16), (16, 16)):
    assert arrangement.padded_clients(count, one) == expected
    assert arrangement.padded_clients(count, two) == expected


def test_clients_are_dealt_by_their_steps_and_then_by_their_examples():
  data = helpers.federation([3, 9, 1, 5, 2])
  by_steps = helpers.local(batch_size=4)  # 1, 3, 1, 2 and 1 steps.
  work = np.array([9 + 3, 27 + 9, 9 + 1, 18 + 5, 9 + 2])
  result = arrangement.order_of_clients(by_steps, data)
  np.testing.assert_array_equal(result, sharding.deal(work))
  train, _ = arrangement.arrange(by_steps, data, data)
  assert train.num_clients == 8
  assert np.asarray(train.client_ids)[:5].tolist() == result.tolist()
  assert np.asarray(train.sizes()).tolist() == [SIZES[i] for i in result] + [0] * 3
  assert placement.of(train) == 'replicated'


def test_work_on_all_clients_finds_their_data_on_the_devices(monkeypatch):
  local, data = helpers.local(devices=2), helpers.federation(SIZES)
  whole, again = arrangement.arrange(local, data, data)
  assert placement.of(whole) == placement.of(again) == 'replicated'
  (split,) = arrangement.arrange(local, data, data_placement='sharded')[:1]
  assert placement.of(split) == 'sharded'
  np.testing.assert_array_equal(split.client_ids, whole.client_ids)
  # A quarter of a device's memory is too much for all, where all take part.
  memory = 4 * placement.bytes_of(data)
  monkeypatch.setattr(sharding, 'own_memory', lambda device: memory)
  assert placement.of(arrangement.arrange(local, data)[0]) == 'sharded'


@pytest.mark.parametrize('process', [0, 1])
def test_a_process_puts_the_clients_of_its_devices_there(process, monkeypatch):
  local, data = helpers.local(devices=2), helpers.federation(SIZES)
  assert arrangement.process_clients(local, data, 'sharded') is None

  class Device:
    def __init__(self, index):
      self.process_index = index

  class Mesh:
    devices = np.array([Device(0), Device(1)])
    size = 2

  monkeypatch.setattr(processes, 'count', lambda: 2)
  monkeypatch.setattr(jax, 'process_index', lambda: process)
  of_two = local._replace(mesh=Mesh())
  assert arrangement.process_clients(of_two, data, 'replicated') is None
  order = arrangement.order_of_clients(local, data)
  # Four places on each device: the fifth client is alone on the second one.
  own = order[:4] if process == 0 else order[4:]
  result = arrangement.process_clients(of_two, data, 'sharded')
  assert result.dtype == bool
  assert sorted(np.flatnonzero(result)) == sorted(own.tolist())


def test_a_round_of_all_clients_has_padding_too():
  mesh = sharding.client_mesh(2)
  for count in (0, 5, 6):
    cohort = arrangement.draw_cohort(3, 4, count, padded(), mesh)
    assert cohort.everyone
    assert (cohort.round, cohort.round.dtype) == (3, np.int32)
    assert cohort.ids.tolist() == list(range(8))
    assert cohort.ids.dtype == np.int32


def test_a_round_of_some_clients_draws_them_by_their_ids():
  data, mesh = padded(), sharding.client_mesh(2)
  turned = data.reorder(np.array([4, 2, 0, 1, 3]), num_clients=8)
  for number, count in ((1, 3), (2, 3), (3, 1)):
    cohort = arrangement.draw_cohort(3, number, count, data, mesh)
    rng = prng_streams.host_rng(3, prng_streams.COHORT, number)
    drawn = rng.choice(5, count, replace=False)
    assert not cohort.everyone
    assert (cohort.round, cohort.round.dtype) == (number - 1, np.int32)
    assert sorted(cohort.ids.tolist()) == sorted([*drawn.tolist(), 8])
    again = arrangement.draw_cohort(3, number, count, turned, mesh)
    ids = again.ids[again.ids < 8]
    assert set(np.asarray(turned.client_ids)[ids]) == set(drawn)
    if count == 3:  # Devices have like work: the empty place beside the largest client.
      work = np.append(SIZES, [0] * 4)[cohort.ids].reshape(2, 2)
      assert 0 in work[work.max(axis=1).argmax()]


def test_all_clients_or_a_sample_of_more():
  data, mesh = helpers.federation(SIZES), sharding.client_mesh(1)
  key = jax.random.key(0)
  for count in (0, 5, 6):
    result = sampling.all_or_sample(key, data, count, mesh)
    assert result.everyone
    assert result.ids.tolist() == list(range(5))
  for count in (1, 4):
    result = sampling.all_or_sample(key, data, count, mesh)
    own = prng_streams.fold(key, prng_streams.SAMPLE)
    assert not result.everyone
    assert len(set(result.ids.tolist())) == count
    expected = sampling.sample_clients(own, data, count, mesh)
    assert result.ids.tolist() == expected.ids.tolist()


def test_a_sample_of_a_cohort_has_no_others():
  data, mesh = helpers.federation([1] * 9), sharding.client_mesh(1)
  some = sampling.sample_clients(jax.random.key(1), data, 4, mesh)
  for number in range(4):
    key = jax.random.key(number)
    result = sampling.sample_clients(key, data, 3, mesh, some).ids.tolist()
    assert len(set(result)) == 3
    assert set(result) < set(some.ids.tolist())
    fewer = sampling.sample_clients(key, data, 3, mesh, some, number=2).ids.tolist()
    assert fewer == [*result[:2], 9]


def test_cohorts_fill_up_to_a_multiple_of_three_devices():
  data, mesh = padded(), types.SimpleNamespace(size=3)
  for count, places in ((1, 3), (2, 3), (3, 3), (4, 6)):
    ids = arrangement.draw_cohort(3, 1, count, data, mesh).ids
    assert (len(ids), (ids == 8).sum()) == (places, places - count)
    ids = sampling.sample_clients(jax.random.key(0), data, count, mesh).ids
    assert (len(ids), (ids == 8).sum()) == (places, places - count)
