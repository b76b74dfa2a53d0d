"""Stacks in the host's memory: the same results as on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.core import arrangement, client_map, offloading, sharding, tree
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers, methods
from tests.support.runs import simulate

# Every method that can keep its clients' models there.
OFFLOADED = [
  ('fesem', {'num_clusters': 2, 'track_objective': True}),
  ('fesem', {'num_clusters': 2, 'init_clients': 4}),
  ('fesem_ma', {'num_clusters': 2, 'init_clients': 4}),
  ('non_fed', {}),
  ('ditto', {'ditto_lambda': 0.5}),
  ('scaffold', {'server_learning_rate': 0.5}),
  ('fed_dyn', {'dyn_alpha': 0.3}),
]
IDS = [f'{name}-{"-".join(options)}' for name, options in OFFLOADED]
# Centers; below, models alone.
BY_DAY = (1,)
SIZES = [6, 3, 9, 5, 8, 4, 7, 5]


def host(tree):
  return jax.device_get(offloading.as_arrays(tree))


def data_and_local(devices=1):
  local = helpers.local(chunk=3, devices=devices, hidden=())
  data = helpers.federation(SIZES, groups=[0, 1] * 4)
  return arrangement.arrange(local, data, data)[0], local


def two_rounds(name, options, state, devices=1):
  """The state after a round of all and one of some, their reports, what is deployed."""
  data, local = data_and_local(devices)
  algorithm = algorithms.build(name, local, client_state=state, **options)
  last, infos = methods.run(algorithm, data, 2, all_then_some, 0, state == 'offloaded')
  return host(last), infos, host(jax.jit(algorithm.deployed)(last, data))


def all_then_some(number):
  """All clients in round 1; three of them and an empty place in round 2."""
  if number == 1:
    return Cohort(np.arange(8, dtype=np.int32), everyone=True)
  ids = np.random.default_rng(number).permutation(8)[:3]
  return Cohort(np.append(ids, 8).astype(np.int32), everyone=False)


def assert_same(a, b):
  """Equal but for the last digits: other programs add up in another order."""
  assert jax.tree.structure(a) == jax.tree.structure(b)

  def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)

  jax.tree.map(close, a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'options', 'devices'),
  [
    pytest.param(
      *row, 1 + i % 2, id=IDS[i], marks=[pytest.mark.nightly] * (i not in BY_DAY)
    )
    for i, row in enumerate(OFFLOADED)
  ],
)
def test_the_same_results_as_on_the_devices(name, options, devices):
  kept, offloaded = (
    two_rounds(name, options, state, devices) for state in ('stacked', 'offloaded')
  )
  assert_same(kept, offloaded)


@pytest.mark.nightly
def test_rows_read_ahead_are_those_of_the_next_chunk(monkeypatch):
  devices = 2
  kept = two_rounds('non_fed', {}, 'stacked', devices)
  monkeypatch.setattr(client_map, 'reads_ahead', lambda mesh: True)
  assert_same(kept, two_rounds('non_fed', {}, 'offloaded', devices))
  monkeypatch.setattr(offloading, '_UNROLLED', 1)
  assert_same(kept, two_rounds('non_fed', {}, 'offloaded', devices))


def stack_of(count, devices, seed=0):
  """Random models [count, ...] in the host's memory, and the same as arrays."""
  rng, mesh = np.random.default_rng(seed), helpers.local(devices=devices).mesh
  models = helpers.two_layers(rng, count, size=130)
  empty = jax.jit(lambda m: offloading.repeat(m, count, mesh))(
    jax.tree.map(lambda x: jnp.zeros_like(x[0]), models)
  )
  ids = jnp.arange(count)
  return jax.jit(lambda s, m: s.with_rows(ids, m))(empty, models), models


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, host(a), host(b))


@pytest.mark.parametrize('devices', [1, 2])
def test_rows_in_and_out(devices):
  stack, models = stack_of(8, devices)
  assert stack.rows.sharding.memory_kind == 'pinned_host'
  assert stack.rows.shape == (8, 8, 128)  # 6 and 130 numbers: three lines, of eight.
  assert stack.form.size == 136
  assert_equal(stack, models)
  ids = jnp.array([5, 0, 8, 3])  # 8 is an empty place.
  result = jax.jit(lambda s: s.rows_of(ids))(stack)
  expected = jax.tree.map(lambda x: x.at[ids].get(mode='fill', fill_value=0), models)
  assert_equal(result, expected)
  few = jax.jit(lambda s: s.fetch(jnp.array([7, 2, 4])))(stack)
  assert_equal(few, jax.tree.map(lambda x: x[jnp.array([7, 2, 4])], models))
  new = helpers.two_layers(np.random.default_rng(1), 4, size=130)
  changed = jax.jit(lambda s, r: s.with_rows(ids, r))(stack, new)
  put = jax.tree.map(lambda x, r: x.at[ids].set(r, mode='drop'), models, new)
  assert_equal(changed, put)
  same = jax.jit(lambda s, r: s.with_rows(ids, r.rows_of(ids)))(changed, stack)
  assert_equal(same, models)


@pytest.mark.parametrize('ahead', [False, True])
def test_chunks_replace_their_own_rows_only(ahead, monkeypatch):
  monkeypatch.setattr(client_map, 'reads_ahead', lambda _: ahead)
  stack, models = stack_of(7, 1)
  work = jnp.array([3, 9, 1, 9, 4, 2, 5])
  group = jnp.array([0, 1, 0, 2, 1, 0, 0])  # Chunks with empty places.

  def body(_, ids, own, old, sums):
    assert set(own) == set(models)
    added = jax.tree.map(lambda x, y: x + 2 * y, old, own)
    return added, sums + jnp.where(ids < 7, ids, 0).sum()

  def double(stack):
    return client_map.map_clients(
      body, jnp.arange(7), work, stack, None, into=stack, group=group, num_groups=3,
      per_chunk=3, empty=7, mesh=sharding.client_mesh(1), sums=jnp.int32(0),
    )  # fmt: skip

  tripled, total = jax.jit(double)(stack)
  assert total == sum(range(7))
  methods.assert_close(
    methods.matrix(host(tripled)), 3 * methods.matrix(models), 1e-6, 1e-6
  )


@pytest.mark.parametrize(
  ('name', 'state', 'options'),
  [
    ('fesem', 'offloaded', {'aggregation': 'median'}),
    ('fesem', 'offloaded', {'recluster_every': 2}),
    ('fesem', 'offloaded', {'init_models': 'random'}),
    ('robust', 'offloaded', {}),
    ('fed_cluster', 'offloaded', {}),
    ('non_fed', 'streamed', {}),
    ('ditto', 'streamed', {}),
  ],
)
def test_what_needs_all_models_on_the_devices_is_refused(name, state, options):
  with pytest.raises(UserError, match='client_state'):
    algorithms.build(name, helpers.local(), client_state=state, **options)


def test_models_of_another_kind_are_refused():
  data, local = data_and_local()
  half = local.model._replace(
    init=lambda key: jax.tree.map(lambda x: x.astype('bfloat16'), local.model.init(key))
  )
  algorithm = algorithms.build(
    'non_fed', local._replace(model=half), client_state='offloaded'
  )
  with pytest.raises(UserError, match='client_state'):
    methods.initial(algorithm, data)


@pytest.mark.nightly
def test_a_run_goes_on_to_the_bit_and_leaves_its_models(tmp_path):
  data, local = helpers.federation(SIZES), helpers.local(devices=2, hidden=())
  built = {
    state: algorithms.build('fesem', local, num_clusters=2, client_state=state)
    for state in ('offloaded', 'stacked')
  }

  def go(folder, rounds, state='offloaded'):
    return simulate(
      built[state], data, data, rounds=rounds, clients_per_round=5, checkpoint_every=0,
      workdir=tmp_path / folder,
    )  # fmt: skip

  whole, _ = go('whole', 3), go('parts', 2)
  parts = go('parts', 3)
  assert_equal(parts.state, whole.state)
  placed = parts.state.client_params.rows.sharding
  assert placed.memory_kind == 'pinned_host'
  kept = go('kept', 3, 'stacked')
  assert_same(host(kept.state), host(whole.state))
  saved, expected = (fj.load_run(tmp_path / f).deployed for f in ('whole', 'kept'))
  for client in whole.clients['client']:
    a, b = (m.params(client=client) for m in (saved, expected))
    assert_same(a, b)
    assert_same(a, whole.deployed.params(client=client))
  np.testing.assert_allclose(
    np.abs(whole.portrait['coordinates']),
    np.abs(kept.portrait['coordinates']),
    rtol=1e-2,
    atol=1e-3,
  )


def test_rows_of_a_device_are_taken_and_put():
  stack, models = stack_of(5, 1)
  for slots in ([4, 1, 9], [2], [*range(5)] * 14):  # 9 is an empty place.
    slots = jnp.array(slots)
    taken = jax.jit(lambda s, i: s.take(i))(stack, slots)
    assert_equal(
      taken, jax.tree.map(lambda x, i=slots: x.at[i].get(mode='clip'), models)
    )
  new = helpers.two_layers(np.random.default_rng(2), 3, size=130)
  slots = jnp.array([3, 5, 0])  # The first one behind the end is empty, too.
  put = jax.jit(lambda s, m: s.put(slots, m))(stack, new)
  assert_equal(
    put, jax.tree.map(lambda x, r: x.at[slots].set(r, mode='drop'), models, new)
  )


def test_rows_of_a_cohort_that_devices_cannot_share_come_to_all_devices():
  stack, models = stack_of(8, 2)
  for ids in ([5, 0, 3, 6], [5, 0, 3]):
    cohort = Cohort(jnp.array(ids), everyone=False)
    rows = jax.jit(lambda s, c=cohort: tree.rows_of(s, c))(stack)
    assert offloading.is_offloaded(rows) == (len(ids) == 4)
    assert_equal(rows, jax.tree.map(lambda x, i=cohort.ids: x[i], models))
