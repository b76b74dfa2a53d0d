"""Devices: their mesh, who gets which clients, and what runs on each."""

import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.core import sharding
from fesem_jax.core.platforms import per_device
from fesem_jax.utils import processes
from fesem_jax.utils.errors import UserError


@pytest.mark.parametrize(('asked', 'size'), [(0, 2), (1, 1), (2, 2)])
def test_a_mesh_has_as_many_devices_as_asked_for(asked, size):
  mesh = sharding.client_mesh(asked)
  assert mesh.axis_names == (sharding.CLIENTS,)
  assert mesh.devices.tolist() == jax.devices()[:size]
  assert sharding.client_mesh().size == 2  # All, by default.


@pytest.mark.parametrize('asked', [-1, 3])
def test_a_mesh_of_devices_that_do_not_exist_is_refused(asked):
  with pytest.raises(UserError, match='num_devices'):
    sharding.client_mesh(asked)


@pytest.mark.parametrize('count', [0, 1, 2, 7, 13])
def test_dealing_splits_every_count_of_clients_evenly(count):
  # The first half is the larger one, as `np.array_split` has it.
  order = sharding.deal(np.ones(count))
  assert order.dtype == np.int64
  assert sorted(order) == list(range(count))
  work = np.array([1, 9, 5, 6, 7])  # 9 | 7 6, then 5 and 1 to the lighter 9.
  assert work[sharding.deal(work)].tolist() == [9, 1, 5, 7, 6]
  work = 2.0 ** np.arange(count)
  first, second = np.array_split(sharding.deal(work), 2)
  if count > 1:  # All others together weigh less than the largest.
    assert count - 1 in first
    assert count - 2 in second


def test_clients_of_equal_work_are_dealt_in_their_order():
  # By turns to two hands, and again by turns: their numbers with all bits reversed.
  reversed_bits = [int(f'{i:06b}'[::-1], 2) for i in range(64)]
  assert sharding.deal(np.full(64, 0.5)).tolist() == reversed_bits
  # Those without work stay together.
  assert sharding.deal(np.zeros(7)).tolist() == list(range(7))
  # The first of all begins the first half, the second one the second half.
  work = np.random.default_rng(0).integers(0, 3, 200)
  largest = np.flatnonzero(work == 2)
  assert sharding.deal(work)[[0, 100]].tolist() == largest[:2].tolist()


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
  actual, sums = jax.jit(per_device(double, mesh, 2))(rows, weights, whole)
  on_each = 4 // (devices or 1)
  assert set(seen) == {((on_each, 3), (on_each,), (3,))}
  np.testing.assert_array_equal(actual['rows'], 2 * rows + whole)
  np.testing.assert_array_equal(sums['sum'], weights @ rows)
  assert float(sums['count']) == 4
  if devices == 2:
    split = NamedSharding(mesh, PartitionSpec(sharding.CLIENTS))
    assert actual['rows'].sharding.is_equivalent_to(split, 2)
    assert sums['sum'].sharding.is_fully_replicated


def test_devices_run_apart_without_any_exchange_but_sums():
  # A device that needed the rows of others would gather them.
  mesh = sharding.client_mesh(2)
  x = jax.device_put(
    np.ones((4, 3), np.float32), NamedSharding(mesh, PartitionSpec(sharding.CLIENTS))
  )
  run = jax.jit(per_device(lambda x: (x * 2, x.sum(axis=0)), mesh, 1))
  text = run.lower(x).compile().as_text()
  assert 'all-reduce' in text
  assert not any(word in text for word in ('all-gather', 'all-to-all', 'permute('))


@pytest.fixture
def two_processes(monkeypatch):
  """As if this process were one of two."""
  monkeypatch.setattr(processes, 'count', lambda: 2)


def test_each_process_gives_equally_many_devices(two_processes, monkeypatch):
  owners = [0, 0, 0, 1, 1, 1]
  devices = [
    types.SimpleNamespace(platform='cpu', process_index=p, id=i)
    for i, p in enumerate(owners)
  ]
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  monkeypatch.setattr(sharding, 'Mesh', lambda chosen, names: (chosen, names))

  def chosen(count):
    result, names = sharding.client_mesh(count)
    assert names == ('clients',)
    return [d.id for d in result]

  assert chosen(0) == [0, 1, 2, 3, 4, 5]
  assert chosen(2) == [0, 3]
  assert chosen(4) == [0, 1, 3, 4]
  with pytest.raises(UserError, match='num_devices'):
    sharding.client_mesh(3)


def test_processes_place_the_rows_of_their_devices(two_processes):
  mesh = sharding.client_mesh(0)
  split = NamedSharding(mesh, PartitionSpec(sharding.CLIENTS))
  tree = {'a': np.arange(6.0).reshape(2, 3), 'key': jax.random.split(jax.random.key(0))}
  placed = sharding.place(tree, split)
  for name, expected in (('a', tree['a']), ('key', jax.random.key_data(tree['key']))):
    actual = placed[name]
    assert actual.sharding.is_equivalent_to(split, actual.ndim)
    actual = jax.random.key_data(actual) if name == 'key' else actual
    np.testing.assert_array_equal(actual, expected)
  assert jax.random.key_impl(placed['key']) == jax.random.key_impl(tree['key'])
  # Each array by a sharding of its own; one that no program reads stays.
  whole = NamedSharding(mesh, PartitionSpec())
  placed = sharding.place(tree, {'a': whole, 'key': None})
  assert placed['a'].sharding.is_fully_replicated
  assert placed['key'] is tree['key']


def fake_device(platform='gpu', kind='a card', stats=None):
  def memory_stats():
    if isinstance(stats, Exception):
      raise stats
    return stats

  return types.SimpleNamespace(
    platform=platform, device_kind=kind, memory_stats=memory_stats
  )


def test_memory_of_devices(monkeypatch):
  monkeypatch.setattr(sharding, 'host_memory', lambda: 1001)
  cpu, full = fake_device('cpu'), fake_device(stats={'bytes_limit': 600})
  assert [sharding.memory(cpu), sharding.memory(cpu, 2)] == [1001, 500]
  assert sharding.memory(full) == sharding.memory(full, 2) == 600
  unknown = NotImplementedError()
  assert sharding.memory(fake_device(kind='TPU v4', stats=unknown)) == 32 * 2**30
  assert sharding.memory(fake_device(kind='TPU v4', stats={})) == 32 * 2**30
  assert sharding.memory(fake_device()) is None
  monkeypatch.setattr(sharding, 'host_memory', lambda: None)
  assert sharding.memory(cpu) is None
  # What a device has for itself.
  assert sharding.own_memory(cpu) is None
  assert sharding.own_memory(full) == 600
  # A quarter is for clients; without a known memory, of 16 GiB.
  assert sharding.memory_for_clients(full) == 150
  assert sharding.memory_for_clients(fake_device()) == 4 * 2**30


def test_processes_agree_on_the_memory_of_devices(two_processes, monkeypatch):
  # None of them can ask all devices: a table of their kinds says it.
  card = fake_device(kind='TPU v4', stats={'bytes_limit': 600})
  assert sharding.memory_for_clients(card) == 8 * 2**30
  assert sharding.memory_for_clients(fake_device(stats={'bytes_limit': 6})) == 2**32
  monkeypatch.setattr(processes, 'from_first', lambda make: ('first', make()))
  monkeypatch.setattr(jax, 'local_devices', lambda: [card])
  assert sharding.own_memory(fake_device()) == ('first', 600)


def test_as_many_clients_side_by_side_as_fit():
  def count(device, **shapes):
    mesh = types.SimpleNamespace(size=2, devices=np.array([device]))
    params = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    return sharding.default_clients_per_chunk(params, mesh)

  cpu = fake_device('cpu')
  assert count(cpu, a=(10, 10), b=(25,)) == 64
  assert count(cpu, a=(100, 99), b=(100,)) == 20
  assert count(cpu, a=(1000, 201)) == 1
  assert count(cpu, a=(3, 3, 1, 8)) == 1  # A convolution.
  # Six copies of each parameter in a quarter of the memory.
  small = fake_device(stats={'bytes_limit': 4 * 24 * 125 * 7})
  assert count(small, a=(10, 10), b=(25,)) == 7
  assert count(small, a=(1000, 10)) == 1
  patches = 120 * 2**20
  large = fake_device(stats={'bytes_limit': 4 * 3 * (patches + 24 * 72)})
  assert count(large, a=(3, 3, 1, 8)) == 3


def test_products_on_accelerators_are_of_full_precision(monkeypatch):
  updated = {}
  monkeypatch.setattr(jax.config, 'update', updated.__setitem__)
  sharding.full_precision([fake_device('cpu')])
  assert not updated
  sharding.full_precision([fake_device('gpu')])
  assert updated == {'jax_default_matmul_precision': 'highest'}


@pytest.fixture
def settings(monkeypatch):
  """Those of JAX as a user may have chosen them, and what is then updated."""

  def chosen(**values):
    updated = {}
    of_jax = types.SimpleNamespace(values=values, update=updated.__setitem__)
    monkeypatch.setattr(jax, 'config', of_jax)
    return updated

  return chosen


def test_programs_are_kept_unless_the_user_says_where_and_which(
  settings, monkeypatch, tmp_path
):
  monkeypatch.setattr(processes, 'initialize', lambda group: None)
  monkeypatch.setattr(pathlib.Path, 'home', lambda: tmp_path)
  seconds = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'
  monkeypatch.delenv(seconds, raising=False)

  def kept(folder):
    updated = settings(
      jax_compilation_cache_dir=folder, jax_default_matmul_precision=None
    )
    sharding.setup_devices(1)
    assert updated.pop('jax_num_cpu_devices') == 1
    return updated

  at_once = {'jax_persistent_cache_min_compile_time_secs': 0.0}
  folder = str(tmp_path / '.cache' / 'fesem_jax')
  assert kept(None) == {'jax_compilation_cache_dir': folder} | at_once
  assert kept('elsewhere') == at_once
  monkeypatch.setenv(seconds, '2')
  assert kept('elsewhere') == {}
