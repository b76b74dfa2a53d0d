"""What holds for every method: in one round, and for any federation.

In the random cases clients have 0 to 5 examples; cohort, order, key and values are
random too. Shapes stay the same, so a method's programs are compiled once for all of
its cases.
"""

import functools
from typing import Any, NamedTuple

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner
from fesem_jax.cohorts import placement
from fesem_jax.cohorts.sampling import coin
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.types import ClientInfo, Cohort, FederatedData
from fesem_jax.run.checkpoint import Checkpoints
from tests.support import helpers, reference
from tests.support.methods import (
  IDS,
  METHODS,
  ONCE,
  assert_close,
  deployed,
  federation,
  initial,
  matrix,
)

# What states hold of each client, [M, ...].
PER_CLIENT = (
  'assignment', 'client_params', 'client_controls', 'heads', 'seen', 'joined',
)  # fmt: skip
CLIENTS, MOST, CASES = 6, 5, 60
DROPOUT = 0.2


class Case(NamedTuple):
  """A federation and a round, the first or the second one."""

  sizes: tuple[int, ...]
  seed: int
  cohort: tuple[int, ...]
  order: tuple[int, ...]
  second: bool


@st.composite
def cases(draw):
  sizes = draw(st.tuples(*[st.integers(0, MOST)] * CLIENTS).filter(any))
  drawn = draw(st.sets(st.integers(0, CLIENTS - 1), min_size=1))
  order = draw(st.permutations(range(CLIENTS)))
  seed, second = draw(st.integers(0, 999)), draw(st.booleans())
  return Case(sizes, seed, tuple(sorted(drawn)), tuple(order), second)


def federation_of(case, order=tuple(range(CLIENTS)), spoiled=()):
  """The case's clients in an order; those in `spoiled` hold other values.

  Rows that belong to no client are not a number.
  """
  rng = np.random.default_rng(case.seed)
  x = rng.normal(size=(CLIENTS, MOST, *helpers.SHAPE)).astype(np.float32)
  y = rng.integers(0, helpers.CLASSES, (CLIENTS, MOST)).astype(np.int32)
  for i in spoiled:
    x[i], y[i] = (3e38, np.nan)[i % 2], 0
  sizes = np.array(case.sizes)[list(order)]
  flat_x = np.full((CLIENTS * MOST, *helpers.SHAPE), np.nan, np.float32)
  flat_y = np.zeros(CLIENTS * MOST, np.int32)
  flat_x[: sizes.sum()] = np.concatenate([x[i, : case.sizes[i]] for i in order])
  flat_y[: sizes.sum()] = np.concatenate([y[i, : case.sizes[i]] for i in order])
  return FederatedData(
    x=flat_x,
    y=flat_y,
    offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
    client_ids=np.array(order, np.int32),
    num_classes=helpers.CLASSES,
    scale=1.0,
    max_examples=MOST,
    info=ClientInfo(np.array([f'c{i}' for i in order])),
  )


ONE = helpers.local(chunk=3)._replace(dropout_rate=DROPOUT)
TWO = helpers.local(chunk=2, devices=2)
TWO = TWO._replace(dropout_rate=DROPOUT, shared_start='on')


class Programs(NamedTuple):
  """A method and its compiled functions.

  Attributes:
    algorithm: the method, with chunks of 3.
    init: its start.
    step: its round.
    whole: the round of all clients, which overwrites the state.
    on_two: the round with chunks of 2 on each of two devices, which keeps changes to
      shared kernels where it can; so both ways are compared.
  """

  algorithm: Any
  init: Any
  step: Any
  whole: Any
  on_two: Any


@functools.cache
def programs(index):
  """What the cases of a method share."""
  name, options = METHODS[index]
  one, two = (algorithms.build(name, each, **options) for each in (ONE, TWO))
  init, key = jax.jit(one.init), jax.random.key(0)
  data = federation_of(Case((MOST,) * CLIENTS, 0, (), tuple(range(CLIENTS)), False))
  state, everyone = init(key, data), cohort_of(range(CLIENTS), True)
  whole = jax.jit(one.step, donate_argnums=0, keep_unused=True)
  whole = whole.lower(state, data, everyone, key).compile()
  return Programs(one, init, jax.jit(one.step), whole, jax.jit(two.step))


def round_of_all(index, state, data, key):
  """A round of all clients, from a state that is kept."""
  copy = jax.tree.map(jnp.array, state)
  return programs(index).whole(copy, data, cohort_of(range(CLIENTS), True), key)


def cohort_of(ids, everyone=False):
  """These clients; empty places fill up to all."""
  if everyone:
    return Cohort(np.arange(CLIENTS, dtype=np.int32), everyone=True)
  padded = np.full(CLIENTS, CLIENTS, np.int32)
  padded[: len(ids)] = ids
  return Cohort(padded, everyone=False)


def own_parts(state, ids):
  """What the state holds of each of these clients."""

  def pick(x):
    return np.asarray(x)[np.array(ids, int)]  # On the host: one by one it is slow.

  fields = [f for f in PER_CLIENT if f in state._fields]
  found = {f: jax.tree.map(pick, getattr(state, f)) for f in fields}
  if 'method' in state._fields:  # Of a wrapped method.
    found['method'] = own_parts(state.method, ids)
  return found


def reordered(state, order):
  """The state when clients come in another order."""
  parts = own_parts(state, order)
  if 'method' in parts:
    parts['method'] = reordered(state.method, order)
  return state._replace(**parts)


def assert_same(a, b):
  chex.assert_trees_all_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
@hypothesis.settings(
  max_examples=CASES,
  deadline=None,
  derandomize=True,
  suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(cases())
def test_properties(index, case):
  _, init, step, _, on_two = programs(index)
  data = federation_of(case)
  key = jax.random.key(case.seed)
  state = init(key, data)
  if case.second:  # What clients and server remember is not as at the start.
    first_key = jax.random.fold_in(key, 1)
    state, _ = round_of_all(index, state, data, first_key)
  full_only = METHODS[index][0] == 'fed_cluster'
  ids = range(CLIENTS) if full_only else case.cohort
  cohort = cohort_of(ids, full_only)
  if full_only:
    after, info = round_of_all(index, state, data, key)
  else:
    after, info = step(state, data, cohort, key)

  # Whatever the clients hold, models are finite and counts add up.
  chex.assert_tree_all_finite(after)
  sizes = np.array(case.sizes)
  dropped = coin(key, data, jnp.arange(CLIENTS), DROPOUT, prng_streams.DROPOUT)
  takes_part = [i for i in ids if sizes[i] and not dropped[i]]
  assert int(info.trained) == len(takes_part)
  assert int(info.failed) == 0
  if info.clusters is not None:
    # Those that have yet to join have no cluster.
    joined = getattr(after, 'joined', None)
    exist = sizes > 0 if joined is None else (sizes > 0) & np.asarray(joined)
    assert int(info.clusters.sizes.sum()) == exist.sum()

  # Chunks and devices change nothing but rounding.
  elsewhere, other_info = on_two(jax.device_get(state), data, cohort, key)
  assert_same(after, elsewhere)
  assert_close(info.train_loss, other_info.train_loss)

  # Another order of the clients permutes the results.
  turned = federation_of(case, case.order)
  moved = np.argsort(case.order)[list(ids)]
  if full_only:
    permuted, _ = round_of_all(index, reordered(state, case.order), turned, key)
  else:
    permuted, _ = step(reordered(state, case.order), turned, cohort_of(moved), key)
  assert_same(reordered(after, case.order), permuted)
  if full_only:
    return

  # Nor does the order of a cohort matter, or whether it names empty clients.
  sound = [i for i in ids if sizes[i]]
  shuffled, _ = step(state, data, cohort_of(sound[::-1]), key)
  keep = np.array([i for i in range(CLIENTS) if sizes[i]])
  assert_same(reordered(after, keep), reordered(shuffled, keep))

  # Clients outside of the cohort keep what they have, and nobody looks at their values.
  outside = [i for i in range(CLIENTS) if i not in ids]
  chex.assert_trees_all_equal(own_parts(after, outside), own_parts(state, outside))
  spoiled, _ = step(state, federation_of(case, spoiled=outside), cohort, key)
  chex.assert_trees_all_equal(after, spoiled)

  # All clients as a cohort are full participation.
  everyone, _ = round_of_all(index, state, data, key)
  listed, _ = step(state, data, cohort_of(range(CLIENTS)), key)
  assert_same(everyone, listed)

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
  if name in ('fesem', 'hypo_cluster', 'robust')
  and not {'server_optimizer', 'aggregation'} & options.keys()
]


@pytest.mark.slow
@pytest.mark.parametrize('index', STARTS, ids=[IDS[i] for i in STARTS])
def test_starts_depend_on_neither_chunks_devices_order_nor_padding(index):
  name, options = METHODS[index]
  data = federation_of(Case((4, 3, 5, 2, 5, 1), 0, (), tuple(range(CLIENTS)), False))
  key, order = jax.random.key(0), np.array([4, 0, 5, 2, 1, 3])
  state = programs(index).init(key, data)
  # All at once: to compile a start takes seconds.
  local = helpers.local(chunk=2, devices=2)._replace(dropout_rate=DROPOUT)
  other = algorithms.build(name, local, **options).init
  other = jax.jit(other)(key, data.reorder(order, num_clients=8))
  assert_same(reordered(state, order), reordered(other, np.arange(6)))


def after_a_round(index):
  """A federation, and the state of a method after a round of all clients."""
  data = federation_of(Case((4, 3, 5, 2, 5, 1), 0, (), tuple(range(CLIENTS)), False))
  state = programs(index).init(jax.random.key(0), data)
  return data, round_of_all(index, state, data, jax.random.key(1))[0]


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_round_after_a_checkpoint_is_the_same_to_the_bit(index, tmp_path):
  data, state = after_a_round(index)
  checkpoints = Checkpoints(tmp_path, {})
  checkpoints.save(1, state)
  restored, rounds_done = checkpoints.restore(jax.tree.map(jnp.zeros_like, state))
  checkpoints.close()
  assert rounds_done == 1
  whole, resumed = (
    round_of_all(index, x, data, jax.random.key(2)) for x in (state, restored)
  )
  chex.assert_trees_all_equal(whole, resumed)


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
  if METHODS[index][0] == 'fed_cluster':
    pytest.skip('FedCluster compares the updates of all clients')


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_round_overwrites_the_state_keeps_its_structure_and_never_asks_the_host(
  index,
):
  _, init, _, program, _ = programs(index)
  data = federation_of(Case((MOST,) * CLIENTS, 1, (), tuple(range(CLIENTS)), False))
  before = init(jax.random.key(0), data)
  assert helpers.num_aliased(program) == len(jax.tree.leaves(before))
  assert not helpers.asks_host(program)
  state, cohort = jax.tree.map(jnp.array, before), cohort_of(range(CLIENTS), True)
  for r in range(3):  # Compiled once: another shape would be an error.
    key = jax.random.key(r)
    state, info = program(state, data, cohort, key)
    dropped = coin(key, data, jnp.arange(CLIENTS), DROPOUT, prng_streams.DROPOUT)
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
  case = Case((4, 3, 5, 2, 5, 1), 7, (), tuple(range(CLIENTS)), False)
  key, data = jax.random.key(1), federation_of(case)
  dropped = coin(key, data, jnp.arange(CLIENTS), DROPOUT, prng_streams.DROPOUT)
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
