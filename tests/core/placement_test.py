"""Data split by client: a device holds its own clients' examples, and trains them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, data
from fesem_jax.core import batching, client_map, placement, sharding, stratified
from fesem_jax.core.arrangement import arrange, draw_cohort
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sampling import sample_clients
from fesem_jax.core.types import Cohort
from fesem_jax.run import program_memory
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import assert_close
from tests.support.runs import simulated

SIZES = [6, 3, 9, 5, 8, 4, 7, 5, 4, 6, 9, 3, 5, 2, 7, 6, 4, 8, 5, 3]
M, PADDED = len(SIZES), 24


def of_clients(sizes=SIZES):
  """Examples whose label and features are the number of their client."""
  number = np.repeat(np.arange(len(sizes)), sizes)
  x = np.repeat(number[:, None], 3, axis=1).astype(np.uint8)
  return FederatedData.from_arrays(x, number, sizes, scale=1.0)


def placed(devices=2, how='sharded'):
  local, data = helpers.local(devices=devices), of_clients()
  return arrange(local, data, data, data_placement=how)[0], local.mesh


def drawn_of(ids, num_devices, padded=PADDED, real=M):
  """The clients of a cohort, each of which lies with the device that holds it."""
  on_each = np.asarray(ids).reshape(num_devices, -1)
  drawn = []
  for device, part in enumerate(on_each):
    there = part[part < padded]
    assert (there // (padded // num_devices) == device).all()
    drawn += there.tolist()
  assert len(set(drawn)) == len(drawn)
  assert max(drawn, default=0) < real
  return drawn


@pytest.mark.parametrize('num_devices', [1, 2, 3, 4, 8, 16])
def test_every_client_is_as_likely_and_every_device_gives_its_part(num_devices):
  real, rng = 83, np.random.default_rng(0)
  shards = sharding.num_shards(num_devices)
  padded = -(-real // shards) * shards
  exists = np.arange(padded) < real
  of_device = exists.reshape(num_devices, -1).sum(axis=1)
  for count in (1, 5, 40, 82, 83):
    places = stratified.places_for(count, real, padded, num_devices)
    totals = np.zeros(num_devices, int)
    for start in range(real):  # All that there are, each as likely.
      draw = rng.random(padded)
      ids = stratified.evenly(count, draw, exists, start, num_devices, places)
      drawn = drawn_of(ids, num_devices, padded, real)
      assert len(drawn) == count
      each = (ids < padded).reshape(num_devices, -1).sum(axis=1)
      assert (each >= count * of_device // real).all()
      assert (each <= -(-count * of_device // real)).all()
      totals += each
    np.testing.assert_array_equal(totals, count * of_device)


def test_who_of_a_shard_is_drawn_is_as_likely():
  exists, rng = np.ones(16, bool), np.random.default_rng(1)
  seen = np.zeros(16)
  for _ in range(4000):
    ids = stratified.evenly(5, rng.random(16), exists, int(rng.integers(16)), 2, 3)
    seen[ids[ids < 16]] += 1
  np.testing.assert_allclose(seen / 4000, 5 / 16, atol=4 * np.sqrt(0.22 / 4000))


@pytest.mark.nightly
def test_numbers_of_devices_that_divide_8_draw_the_same_clients():
  draw, exists = np.random.default_rng(2).random(40), np.arange(40) < 37
  for on_device in (False, True):
    result = set()
    for devices in (1, 2, 4, 8):
      places = stratified.places_for(11, 37, 40, devices)
      args = (draw, exists)
      args = map(jnp.asarray, args) if on_device else args
      ids = stratified.evenly(11, *args, 5, devices, places)
      result.add(frozenset(drawn_of(ids, devices, 40, 37)))
    assert len(result) == 1
    assert len(result.pop()) == 11


def test_a_program_rounds_the_parts_of_devices_at_random():
  draw, exists = jnp.linspace(0, 1, 16), jnp.ones(16, bool)
  mesh = sharding.client_mesh()

  def of_one(key):
    ids = stratified.drawn_on_devices(key, 1, draw, exists, 1, mesh)
    return ids.min()  # The other place is empty.

  result = jax.jit(jax.vmap(of_one))(jax.random.split(jax.random.key(0), 100))
  assert result.dtype == np.int32
  # Of each of eight shards the client of the least number, each about as often.
  ids, counts = np.unique(result, return_counts=True)
  assert ids.tolist() == list(range(0, 16, 2))
  np.testing.assert_allclose(counts, 100 / 8, atol=11)


@pytest.mark.parametrize('only', [[0], [3], [7], []])
def test_clients_that_exist_are_drawn_and_other_places_are_empty(only):
  exists = np.isin(np.arange(8), only)
  ids = stratified.evenly(2, np.linspace(0, 1, 8), exists, 0, 1, 2)
  assert ids.tolist() == [*only, 8, 8][:2]


def test_parts_of_large_cohorts_are_exact_in_32_bits():
  whole, part = 999_983, np.array([1, 499_992, 999_983], np.int32)
  for count in (7, 4096, 700_001, 999_983, 2**30 + 12_345):
    for start in (0, 12_345, whole - 1):
      expected = [(count * int(p) + start) // whole for p in part]
      for totals in (count, jnp.int32(count)):
        result = stratified._part(totals, jnp.asarray(part), jnp.int32(whole), start)
        assert result.tolist() == expected


def rows_read(data, mesh, cohort):
  """[S, B, 3] features and [S, B] labels of each place's client, and its size."""

  def read(data, ids):
    def body(data, ids, own, _, sums):
      last = data.sizes(ids)[:, None] - 1
      rows = jnp.minimum(jnp.arange(4)[None], last)
      both = jax.vmap(batching.gather, (None, 0, 0))(data, ids, rows)
      return (*both, data.sizes(ids)), sums

    return client_map.map_clients(
      body, ids, data.sizes(ids), None, data,
      per_chunk=2, empty=data.num_clients, mesh=mesh,
    )[0]  # fmt: skip

  return jax.jit(read)(data, cohort.ids)


def cohorts_of(data, mesh):
  """Cohorts of all kinds: of rounds, samples in programs, samples of samples."""
  for number in range(1, 5):
    yield 7, draw_cohort(3, number, 7, data, mesh)

  @jax.jit
  def sampled(key, data):
    some = sample_clients(key, data, 12, mesh)
    fewer = sample_clients(key, data, 12, mesh, number=jnp.int32(9))
    return some, sample_clients(key, data, 5, mesh, some), fewer

  for number in range(3):
    yield from zip((12, 5, 9), sampled(jax.random.key(number), data), strict=True)


def test_drawn_clients_read_their_own_examples():
  data, mesh = placed()
  sets = []
  for count, cohort in cohorts_of(data, mesh):
    drawn = drawn_of(cohort.ids, mesh.size)
    assert len(drawn) == count
    x, y, sizes = map(np.asarray, rows_read(data, mesh, cohort))
    ids = np.asarray(cohort.ids)
    there = ids < data.num_clients
    own = np.asarray(data.client_ids)[ids[there]]
    assert (y[there] == own[:, None]).all()
    assert (x[there] == own[:, None, None]).all()
    np.testing.assert_array_equal(sizes[there], np.array(SIZES)[own])
    sets.append(tuple(sorted(drawn)))
  assert len(set(sets)) == len(sets)


def test_cohorts_do_not_depend_on_one_or_two_devices():
  one, two = (
    [sorted(drawn_of(c.ids, mesh.size)) for _, c in cohorts_of(data, mesh)]
    for data, mesh in map(placed, (1, 2))
  )
  assert one == two


def test_a_client_of_another_device_is_an_empty_place():
  data, mesh = placed()
  elsewhere = Cohort(np.array([PADDED - 5, 3, 0, 1], np.int32), everyone=False)
  *_, sizes = rows_read(data, mesh, elsewhere)
  assert sizes.tolist() == [0, SIZES[data.client_ids[3]], 0, 0]
  whole, _ = placed(how='replicated')
  assert (np.asarray(rows_read(whole, mesh, elsewhere)[2])[1:] > 0).all()


def test_a_device_holds_its_clients_examples_and_padding():
  data, mesh = placed()
  sizes = np.asarray(data.sizes()).reshape(2, -1).sum(axis=1)
  assert sizes.sum() == sum(SIZES)
  for rows in (data.x, data.y):
    parts = [s.data for s in rows.addressable_shards]
    assert [len(part) for part in parts] == [sizes.max()] * 2
    assert {part.device for part in parts} == set(mesh.devices.flat)


def test_the_host_reads_split_data_as_before():
  split, whole = placed()[0], placed(how='replicated')[0]
  for i in range(PADDED):
    for a, b in zip(split.client(i), whole.client(i), strict=True):
      np.testing.assert_array_equal(a, b)
  for name in ('x', 'y'):
    rows = split.compact(getattr(split, name))
    np.testing.assert_array_equal(rows, whole.compact(getattr(whole, name)))
  np.testing.assert_array_equal(data.label_counts(split), data.label_counts(whole))
  back = split.reorder(np.argsort(np.asarray(split.client_ids))[:M])
  np.testing.assert_array_equal(back.y, of_clients().y)


@pytest.mark.parametrize('clients_per_round', [0, 7])
def test_no_data_is_exchanged(clients_per_round):
  local = helpers.local(devices=2, shape=(500,))
  data = helpers.federation(SIZES, shape=(500,))
  train, _ = arrange(local, data, data, data_placement='sharded')
  algorithm = algorithms.build('fed_avg', local)
  key = sharding.replicate(jax.random.key(0), local.mesh)
  state = jax.jit(algorithm.init)(key, train)
  cohort = draw_cohort(0, 1, clients_per_round, train, local.mesh)
  program = jax.jit(algorithm.step).lower(state, train, cohort, key).compile()
  model = sum(x.nbytes for x in jax.tree.leaves(state))
  result = program_memory.collectives_of(program.as_text())
  assert result
  assert max(c.bytes for c in result) <= model + 100 < train.x.nbytes / 10


@pytest.mark.parametrize(
  ('share', 'everyone', 'devices', 'reference'),
  [(0.12, True, 2, 'replicated'), (0.13, True, 2, 'sharded'),
   (0.13, True, 1, 'replicated'), (0.13, False, 2, 'replicated'),
   (0.51, False, 2, 'sharded'), (None, True, 2, 'replicated')],
)  # fmt: skip
def test_large_data_are_split_by_themselves(
  share, everyone, devices, reference, monkeypatch
):
  memory = None if share is None else 1000 / share
  mesh = sharding.client_mesh(devices)
  assert sharding.own_memory(mesh.devices.flat[0]) is None  # All have one memory.
  monkeypatch.setattr(sharding, 'own_memory', lambda device: memory)
  assert placement.chosen('auto', 1000, mesh, everyone) == reference
  for named in ('replicated', 'sharded'):
    assert placement.chosen(named, 1000, mesh, everyone) == named


def mesh_of(platform):
  device = types.SimpleNamespace(platform=platform)
  return types.SimpleNamespace(devices=np.array([device]))


def test_examples_fill_tiles_of_128_on_a_tpu_alone():
  for shape, tiles in (((28, 28), 896), ((128,), 128), ((129,), 256), ((), 128)):
    assert placement.width_of(shape, mesh_of('tpu')) == tiles
    numbers = int(np.prod(shape))
    for other in ('cpu', 'gpu'):
      assert placement.width_of(shape, mesh_of(other)) == numbers


@pytest.mark.parametrize('how', ['replicated', 'sharded'])
def test_examples_keep_their_numbers_where_zeros_fill_their_tiles(how, monkeypatch):
  narrow, _ = placed(2, how)
  monkeypatch.setattr(placement, 'width_of', lambda shape, mesh: 5)
  wide, _ = placed(2, how)
  assert (narrow.x.shape[1:], wide.x.shape[1:]) == ((3,), (5,))
  np.testing.assert_array_equal(wide.x[:, :3], narrow.x)
  assert not np.asarray(wide.x[:, 3:]).any()
  assert wide.x.dtype == narrow.x.dtype
  assert wide.flat_from == narrow.flat_from == (3,)
  for i in range(PADDED):
    np.testing.assert_array_equal(wide.client(i)[0], narrow.client(i)[0])


def test_the_placement_is_part_of_the_configuration():
  split, mesh = placed()
  whole, _ = placed(how='replicated')
  assert (placement.of(whole), placement.of(split)) == ('replicated', 'sharded')
  assert placement.identity(whole, mesh) == {}
  assert placement.identity(split, mesh) == {
    'data_placement': 'sharded', 'data_shards': 8
  }  # fmt: skip


def split_run(name='fesem', data_placement='sharded', **options):
  """The result of a run of cohorts of seven clients."""
  groups = np.arange(M) % 2
  train = helpers.federation(SIZES, groups=groups)
  test = helpers.federation([3] * M, groups=groups, seed=1)
  options |= {'clients_per_round': 7, 'data_placement': data_placement}
  return simulated(name, (train, test), **options)


@pytest.mark.nightly
def test_a_run_of_some_clients_goes_on_where_data_are_split_alike(tmp_path):
  how = {'name': 'fed_avg', 'eval_every': 0}
  parts = how | {'workdir': tmp_path, 'config': {'seed': 0}}
  split_run(**parts, rounds=1)
  refused = 'data_placement sharded there, replicated here'
  with pytest.raises(UserError, match=refused):
    split_run(**parts, rounds=1, data_placement='auto')
  rest, whole = split_run(**parts, devices=1), split_run(**how)
  jax.tree.map(assert_close, rest.state, whole.state)
  assert whole.summary['data_placement'] == 'sharded'
