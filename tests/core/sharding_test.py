"""Devices: their mesh, who gets which clients, and what runs on each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.core import sharding
from fesem_jax.utils.errors import UserError

RAGGED = np.random.default_rng(0).lognormal(sigma=1.2, size=400)


def parts(array):
  """What each device holds of an array, in the order of devices."""
  shards = sorted(array.addressable_shards, key=lambda s: s.device.id)
  return [np.asarray(s.data) for s in shards]


@pytest.mark.parametrize(('asked', 'size'), [(0, 2), (1, 1), (2, 2)])
def test_a_mesh_has_as_many_devices_as_asked_for(asked, size):
  mesh = sharding.client_mesh(asked)
  assert mesh.axis_names == (sharding.CLIENTS,)
  assert mesh.devices.tolist() == jax.devices()[:size]


@pytest.mark.parametrize(
  ('asked', 'message'),
  [
    (-1, r'num_devices=-1\S* must not be negative'),
    (3, r'num_devices=3\S* but only 2 cpu device\(s\) exist'),
  ],
)
def test_a_mesh_of_devices_that_do_not_exist_is_refused(asked, message):
  with pytest.raises(UserError, match=message):
    sharding.client_mesh(asked)


def test_devices_are_set_up_before_their_first_use_or_not_at_all():
  jax.devices()
  with pytest.raises(UserError, match='before anything else uses JAX'):
    sharding.setup_devices(1)
  assert len(jax.devices()) == 2


@pytest.mark.parametrize('devices', [2, 4, 8])
def test_dealing_balances_devices(devices):
  shares = np.array_split(RAGGED[sharding.deal(RAGGED)], devices)
  assert sorted(sharding.deal(RAGGED)) == list(range(400))
  loads = [s.sum() for s in shares]
  assert max(loads) < 1.1 * np.mean(loads)


@pytest.mark.parametrize('count', [0, 1, 2, 7, 13])
def test_dealing_splits_every_count_of_clients_evenly(count):
  # The first half is the larger one, as `np.array_split` has it.
  order = sharding.deal(np.ones(count))
  assert order.dtype == np.int64
  assert sorted(order) == list(range(count))
  work = 2.0 ** np.arange(count)
  first, second = np.array_split(sharding.deal(work), 2)
  if count > 1:  # All others together weigh less than the largest.
    assert count - 1 in first
    assert count - 2 in second


def test_dealing_by_hand():
  # 9 | 7 6, then 5 to the lighter 9 and 1 too, as it has room; and each again.
  work = np.array([1, 9, 5, 6, 7])
  order = sharding.deal(work)
  assert work[order].tolist() == [9, 1, 5, 7, 6]


def test_clients_of_equal_work_are_dealt_in_their_order():
  # By turns to two hands, and again by turns: their numbers with all bits reversed.
  reversed_bits = [int(f'{i:06b}'[::-1], 2) for i in range(64)]
  assert sharding.deal(np.full(64, 0.5)).tolist() == reversed_bits
  # The first of all begins the first half, the second one the second half.
  work = np.random.default_rng(0).integers(0, 3, 200)
  largest = np.flatnonzero(work == 2)
  assert sharding.deal(work)[[0, 100]].tolist() == largest[:2].tolist()


@pytest.mark.parametrize('devices', [1, 2])
def test_replicated_arrays_are_whole_on_every_device(devices):
  mesh = sharding.client_mesh(devices)
  tree = {'a': np.arange(6.0).reshape(3, 2), 'key': jax.random.key(0)}
  placed = sharding.replicate(tree, mesh)
  assert len(parts(placed['a'])) == devices
  for part in parts(placed['a']):
    np.testing.assert_array_equal(part, tree['a'])
  assert placed['key'].sharding.is_fully_replicated
  assert placed['key'].sharding.device_set == set(mesh.devices.flat)


@pytest.mark.parametrize('devices', [1, 2])
def test_stacks_are_split_by_clients(devices):
  mesh = sharding.client_mesh(devices)
  stack = {'w': np.arange(24.0).reshape(4, 3, 2), 'b': np.arange(4)}
  placed = sharding.replicate(stack, mesh)
  split = jax.jit(lambda tree: sharding.split_clients(tree, mesh))(placed)
  for name, whole in stack.items():
    want = np.split(whole, devices)
    for part, wanted in zip(parts(split[name]), want, strict=True):
      np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize('devices', [None, 1, 2])
def test_each_device_sees_its_clients_and_sums_are_of_all(devices):
  mesh = devices and sharding.client_mesh(devices)
  seen = []

  def double(rows, weights, whole):
    seen.append((rows.shape, weights.shape, whole.shape))
    out = 2 * rows + whole[None]
    return {'rows': out}, {'sum': weights @ rows, 'count': jnp.float32(len(rows))}

  rows = np.arange(12, dtype=np.float32).reshape(4, 3)
  weights = np.array([1, 2, 3, 4], np.float32)
  whole = np.array([10, 20, 30], np.float32)
  got, sums = jax.jit(sharding.per_device(double, mesh, 2))(rows, weights, whole)
  on_each = 4 // (devices or 1)
  assert set(seen) == {((on_each, 3), (on_each,), (3,))}
  np.testing.assert_array_equal(got['rows'], 2 * rows + whole)
  np.testing.assert_array_equal(sums['sum'], weights @ rows)
  assert float(sums['count']) == 4
  if devices == 2:
    split = NamedSharding(mesh, PartitionSpec(sharding.CLIENTS))
    assert got['rows'].sharding.is_equivalent_to(split, 2)
    assert sums['sum'].sharding.is_fully_replicated


@pytest.mark.parametrize('devices', [1, 2])
def test_rows_or_sums_may_be_absent(devices):
  mesh, x = sharding.client_mesh(devices), np.arange(4, dtype=np.float32)

  def run(fn):
    return jax.jit(sharding.per_device(fn, mesh, 1))(x)

  rows, sums = run(lambda x: (x + 1, None))
  np.testing.assert_array_equal(rows, x + 1)
  assert sums is None
  rows, sums = run(lambda x: (None, x.sum()))
  assert rows is None
  assert float(sums) == 6


def test_devices_run_apart_without_any_exchange_but_sums():
  # A device that needed the rows of others would gather them.
  mesh = sharding.client_mesh(2)
  x = jax.device_put(
    np.ones((4, 3), np.float32),
    NamedSharding(mesh, PartitionSpec(sharding.CLIENTS)),
  )
  run = jax.jit(sharding.per_device(lambda x: (x * 2, x.sum(axis=0)), mesh, 1))
  text = run.lower(x).compile().as_text()
  assert 'all-reduce' in text
  assert not any(word in text for word in ('all-gather', 'all-to-all', 'permute('))
