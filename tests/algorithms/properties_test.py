"""What holds for every method: in one round, and for any federation.

`random_federations` draws the cases; tests/tasks/properties_test.py tries them on
regression and sequences.
"""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner
from fesem_jax.cohorts import placement
from fesem_jax.core import sharding
from fesem_jax.core.types import Cohort
from tests.support import helpers, random_federations, reference
from tests.support.methods import (
  ALL_CLIENTS,
  IDS,
  METHODS,
  ONCE,
  assert_close,
  deployed,
  federation,
  initial,
  matrix,
)
from tests.support.random_federations import (
  CLIENTS,
  FULL,
  MOST,
  Case,
  Programs,
  assert_same,
  cohort_of,
  reordered,
)

CASES = 60
DROPOUT = 0.2


def federation_of(case, *order, **spoiled):
  """The case's clients with random examples of random classes."""
  rng = np.random.default_rng(case.seed)
  x = rng.normal(size=(CLIENTS, MOST, *helpers.SHAPE)).astype(np.float32)
  y = rng.integers(0, helpers.CLASSES, (CLIENTS, MOST)).astype(np.int32)
  fields = {'num_classes': helpers.CLASSES}
  return random_federations.arranged(case, x, y, *order, **spoiled, **fields)


ONE = helpers.local(chunk=3)._replace(dropout_rate=DROPOUT)
TWO = helpers.local(chunk=2, devices=2)
TWO = TWO._replace(dropout_rate=DROPOUT, shared_start='on')


@functools.cache
def programs(index):
  """What the cases of a method share.

  The program for two devices keeps changes to shared kernels where it can; so both ways
  are compared.
  """
  name, options = METHODS[index]
  one, two = (algorithms.build(name, each, **options) for each in (ONE, TWO))
  init, key = jax.jit(one.init), jax.random.key(0)
  data = federation_of(FULL)
  state, everyone = init(key, data), cohort_of(range(CLIENTS), True)
  whole = jax.jit(one.step, donate_argnums=0, keep_unused=True)
  whole = whole.lower(state, data, everyone, key).compile()
  step = None if name in ALL_CLIENTS else jax.jit(one.step)
  return Programs(one, init, step, whole, jax.jit(two.step), federation_of)


def round_of_all(index, state, data, key):
  """A round of all clients, from a state that is kept."""
  return random_federations.round_of_all(programs(index), state, data, key)


def dropped_of(key, data):
  """[M] bool, the clients that drop out of a round."""
  return np.asarray(random_federations.dropped_of(key, data, DROPOUT))


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
@hypothesis.settings(
  max_examples=CASES,
  deadline=None,
  derandomize=True,
  suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(random_federations.cases())
def test_properties(index, case):
  state, after, info, takes_part = random_federations.check_a_round(
    programs(index), case
  )
  if METHODS[index][1].get('track_objective') and takes_part:
    # The E-step never increases Eq. 6, and neither does the M-step.
    first, last = inner(state), inner(after)
    points = matrix(last.client_params)[takes_part]
    old, new = matrix(first.centers), matrix(last.centers)
    before, now = (np.asarray(s.assignment)[takes_part] for s in (first, last))
    values = [
      reference.objective(points, *where)
      for where in ((old, before), (old, now), (new, now))
    ]
    assert values[0] >= values[1] * (1 - 1e-6)
    assert values[1] >= values[2] * (1 - 1e-6)
    assert_close(info.clusters.objective, values[2], rtol=1e-3)
    assert_close(info.clusters.objective_parts, values[:2], rtol=1e-3)


# Rows whose starts differ: no start depends on what follows training.
STARTS = [
  i
  for i, (name, options) in enumerate(METHODS)
  if name in ('clove', 'fesem', 'hypo_cluster', 'pacfl', 'robust')
  and not {'server_optimizer', 'aggregation'} & options.keys()
]


@pytest.mark.slow
@pytest.mark.parametrize('index', STARTS, ids=[IDS[i] for i in STARTS])
def test_starts_depend_on_neither_chunks_devices_order_nor_padding(index):
  name, options = METHODS[index]
  data = federation_of(Case((4, 3, 5, 2, 5, 1)))
  key, order = jax.random.key(0), np.array([4, 0, 5, 2, 1, 3])
  state = programs(index).init(key, data)
  # All at once: to compile a start takes seconds.
  local = helpers.local(chunk=2, devices=2)._replace(dropout_rate=DROPOUT)
  other = algorithms.build(name, local, **options).init
  other = jax.jit(other)(key, data.reorder(order, num_clients=8))
  assert_same(reordered(state, order), reordered(other, np.arange(6)))


def after_a_round(index):
  """A federation, and the state of a method after a round of all clients."""
  data = federation_of(Case((4, 3, 5, 2, 5, 1)))
  state = programs(index).init(jax.random.key(0), data)
  return data, round_of_all(index, state, data, jax.random.key(1))[0]


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_round_after_a_checkpoint_is_the_same_to_the_bit(index, tmp_path):
  case = Case((4, 3, 5, 2, 5, 1))
  random_federations.check_a_resumed_round(programs(index), case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('index', ONCE, ids=[IDS[i] for i in ONCE])
def test_data_split_by_client_change_memory_only(index):
  data, state = after_a_round(index)
  key, cohort, mesh = jax.random.key(2), cohort_of(range(CLIENTS), True), TWO.mesh
  want, info = round_of_all(index, state, data, key)
  split = placement.place(data, mesh, 'sharded')
  state, key = sharding.replicate((state, key), mesh)
  got, found = programs(index).on_two(state, split, cohort, key)
  assert_same(got, want)
  assert_close(info.train_loss, found.train_loss)
  assert int(info.trained) == int(found.trained) > 2


def skip_if_full_participation_only(index):
  if METHODS[index][0] in ALL_CLIENTS:
    pytest.skip('The method needs all clients in each round')


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_round_overwrites_the_state_keeps_its_structure_and_never_asks_the_host(
  index,
):
  _, init, _, program, *_ = programs(index)
  data = federation_of(FULL._replace(seed=1))
  before = init(jax.random.key(0), data)
  assert helpers.num_aliased(program) == len(jax.tree.leaves(before))
  assert not helpers.asks_host(program)
  state, cohort = jax.tree.map(jnp.array, before), cohort_of(range(CLIENTS), True)
  for r in range(3):  # Compiled once: another shape would be an error.
    key = jax.random.key(r)
    state, info = program(state, data, cohort, key)
    dropped = dropped_of(key, data)
    assert int(info.trained) == CLIENTS - int(dropped.sum()) > 0
    assert int(info.failed) == 0
    assert np.isfinite(info.train_loss)
  chex.assert_trees_all_equal_shapes_and_dtypes(state, before)


def test_a_program_that_calls_the_host_would_be_noticed():
  shape = jax.ShapeDtypeStruct((), jnp.int32)
  ask = jax.jit(lambda x: jax.pure_callback(lambda x: x, shape, x))
  assert helpers.asks_host(ask.lower(1).compile())


@pytest.mark.parametrize('name', ['non_fed', 'fesem'])
def test_clients_outside_the_cohort_keep_what_they_have(name):
  data = federation()
  algorithm = algorithms.build(name, helpers.local())
  if name == 'fesem':
    algorithm = algorithms.build(name, helpers.local(), num_clusters=2)
  state = initial(algorithm, data)
  cohort = Cohort(np.array([1, 4, 6], np.int32), everyone=False)  # 6 is nobody.
  after, info = jax.jit(algorithm.step)(state, data, cohort, jax.random.key(1))
  outside = np.array([0, 2, 3, 5])
  np.testing.assert_array_equal(
    matrix(after.client_params)[outside], matrix(state.client_params)[outside]
  )
  assert (
    matrix(after.client_params)[[1, 4]] != matrix(state.client_params)[[1, 4]]
  ).any()
  assert int(info.trained) == 2
  if name == 'fesem':
    np.testing.assert_array_equal(after.assignment[outside], state.assignment[outside])


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_client_that_fails_is_left_out_and_counted(index):
  skip_if_full_participation_only(index)
  algorithm, init, step, *_ = programs(index)
  case = Case((4, 3, 5, 2, 5, 1), 7)
  key, data = jax.random.key(1), federation_of(case)
  dropped = dropped_of(key, data)
  here = [i for i in range(CLIENTS) if not dropped[i]]
  state = init(key, data)
  # One whose examples are not numbers fails after a sound start.
  fails = next(i for i in here if i % 2)
  a, info = step(state, federation_of(case, spoiled=[fails]), cohort_of(here), key)
  b, _ = step(state, data, cohort_of([i for i in here if i != fails]), key)
  assert int(info.failed) == 1
  assert int(info.trained) == len(here) - 1 > 2
  assert np.isfinite(info.train_loss)
  assert_close(deployed(algorithm, a, data), deployed(algorithm, b, data))
