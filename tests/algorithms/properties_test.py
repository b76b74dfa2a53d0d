"""What holds for every round: of one federation, and of any.

`random_federations` draws the cases. `make test` tries rows of methods whose rounds
differ, and every method in tests/tasks/properties_test.py, on regression or sequences.
"""

import functools
from typing import Any, NamedTuple

import chex
import hypothesis
import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner
from tests.support import helpers, random_federations, reference
from tests.support.methods import (
  ALL_CLIENTS,
  COMPARES,
  METHODS,
  ONCE,
  assert_close,
  deployed,
  hidden_of,
  matrix,
  over_rows,
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

CASES = 20  # Of each row; `make properties` tries more.
DROPOUT = 0.2
ROWS = range(len(METHODS))
# Options on which it depends how a cohort of some clients is handled; the first row of
# every method has some on two devices in tests/tasks/properties_test.py.
SOME_ON_TWO = [
  i for i, (name, _) in enumerate(METHODS) if name == 'fesem' and i not in ONCE
]


def federation_of(case, *order, **spoiled):
  """The case's clients with random examples of random classes."""
  rng = np.random.default_rng(case.seed)
  x = rng.normal(size=(CLIENTS, MOST, *helpers.SHAPE)).astype(np.float32)
  y = rng.integers(0, helpers.CLASSES, (CLIENTS, MOST)).astype(np.int32)
  fields = {'num_classes': helpers.CLASSES}
  return random_federations.arranged(case, x, y, *order, **spoiled, **fields)


def local_of(index, **layout):
  """The local training of a row."""
  local = helpers.local(hidden=hidden_of(index), **layout)
  return local._replace(dropout_rate=DROPOUT)


def on_two_devices(index):
  """The same with other chunks, whose clients share kernels where they can."""
  return local_of(index, chunk=2, devices=2)._replace(shared_start='on')


class Compiled(NamedTuple):
  """What the tests of a row share.

  Attributes:
    of_cases: what is tried on random federations.
    products: precisions of the products of the start and of the round, as traced.
    state: a state, placed as in a run on two devices.
  """

  of_cases: Programs
  products: list[Any]
  state: Any


@functools.lru_cache(maxsize=2)
def compiled(index):
  """The programs of a row.

  Those of two devices keep changes to shared kernels where they can; so both ways are
  compared.
  """
  name, options = METHODS[index]
  alone = helpers.with_precise_init(local_of(index, chunk=3))
  one, two = (
    algorithms.build(name, each, **options) for each in (alone, on_two_devices(index))
  )
  data, key, full_only = federation_of(FULL), jax.random.key(0), name in ALL_CLIENTS
  everyone, cohort = (cohort_of(range(CLIENTS), every) for every in (True, full_only))
  # What asks for no precision would have the default, an accelerator's fastest.
  with jax.default_matmul_precision('default'):
    start = jax.jit(one.init).trace(key, data)
    init = start.lower().compile()
    state = jax.device_get(init(key, data))
    step = jax.jit(one.step).trace(state, data, cohort, key)
  products = [
    p for each in (start, step) for p in helpers.product_precisions(each.jaxpr.jaxpr)
  ]
  shapes, shardings = random_federations.placed_as_in_a_run(two, data, key)
  whole = jax.jit(
    two.step, donate_argnums=0, keep_unused=True, out_shardings=(shardings, None)
  )
  result = Programs(
    one, init, step.lower().compile(), federation_of, full_only,
    whole.lower(shapes, data, everyone, key).compile(),
    jax.jit(two.step) if index in SOME_ON_TWO else None,
  )  # fmt: skip
  return Compiled(result, products, jax.device_put(state, shardings))


def programs(index):
  """What is tried on random federations."""
  return compiled(index).of_cases


def dropped_of(key, data):
  """[M] bool, the clients that drop out of a round."""
  return np.asarray(random_federations.dropped_of(key, data, DROPOUT))


@functools.lru_cache(maxsize=CASES)
def round_of(index, case):
  """A round that the tests of a row share: without a database all draw the same."""
  return random_federations.round_of(programs(index), case)


@pytest.mark.slow
@random_federations.over_properties
@over_rows(ROWS)
@random_federations.tried(CASES)
@hypothesis.given(random_federations.cases())
def test_properties(index, holds, case):
  holds(round_of(index, case))


TRACKED = [i for i, (_, o) in enumerate(METHODS) if o.get('track_objective')]


@pytest.mark.slow
@over_rows(TRACKED)
@random_federations.tried(CASES)
@hypothesis.given(random_federations.cases())
def test_neither_e_step_nor_m_step_increases_equation_6(index, case):
  made = round_of(index, case)
  if not (takes_part := made.takes_part):
    return
  first, last = inner(made.state), inner(made.after)
  points = matrix(last.client_params)[takes_part]
  old, new = matrix(first.centers), matrix(last.centers)
  before, now = (np.asarray(s.assignment)[takes_part] for s in (first, last))
  values = [
    reference.objective(points, *where)
    for where in ((old, before), (old, now), (new, now))
  ]
  assert values[0] >= values[1] * (1 - 1e-6)
  assert values[1] >= values[2] * (1 - 1e-6)
  assert_close(made.info.clusters.objective, values[2], rtol=1e-3)
  assert_close(made.info.clusters.objective_parts, values[:2], rtol=1e-3)


# Rows whose starts differ: no start depends on what follows training.
STARTS = [
  i
  for i, (name, options) in enumerate(METHODS)
  if name in ('clove', 'fed_group', 'fesem', 'hypo_cluster', 'pacfl', 'robust')
  and (i in ONCE or 'client_state' in options)
]


@pytest.mark.slow
@over_rows(STARTS)
def test_starts_depend_on_neither_chunks_devices_order_nor_padding(index):
  name, options = METHODS[index]
  data = federation_of(Case((4, 3, 5, 2, 5, 1)))
  key, order = jax.random.key(0), np.array([4, 0, 5, 2, 1, 3])
  state = programs(index).init(key, data)
  # All at once: to compile a start takes seconds.
  local = local_of(index, chunk=2, devices=2)
  other = algorithms.build(name, local, **options).init
  other = jax.jit(other)(key, data.reorder(order, num_clients=8))
  assert_same(reordered(state, order), reordered(other, np.arange(6)))


@pytest.mark.slow
@over_rows(ROWS)
@random_federations.tried(0)
@hypothesis.example(Case((4, 3, 5, 2, 5, 1)))
@hypothesis.given(random_federations.cases())
def test_a_round_after_a_checkpoint_is_the_same_to_the_bit(index, case):
  random_federations.check_a_resumed_round(programs(index), case)


def skip_if_full_participation_only(index):
  if METHODS[index][0] in ALL_CLIENTS:
    pytest.skip('The method needs all clients in each round')


@over_rows(ROWS)
def test_a_round_overwrites_the_state_keeps_its_structure_and_never_asks_the_host(
  index,
):
  of_cases, _, before = compiled(index)
  program = of_cases.whole
  assert helpers.num_aliased(program) == len(jax.tree.leaves(before))
  assert not helpers.asks_host(program)
  data, cohort = federation_of(FULL._replace(seed=1)), cohort_of(range(CLIENTS), True)
  state = jax.tree.map(lambda x: jax.device_put(np.asarray(x), x.sharding), before)
  for r in range(3):  # Compiled once: another shape would be an error.
    key = jax.random.key(r)
    state, info = program(state, data, cohort, key)
    dropped = dropped_of(key, data)
    assert int(info.trained) == CLIENTS - int(dropped.sum()) > 0
    assert int(info.failed) == 0
    assert np.isfinite(info.train_loss)
  chex.assert_trees_all_equal_shapes_and_dtypes(state, before)


@over_rows(ROWS)
def test_every_product_says_its_precision(index):
  result = compiled(index).products
  assert all(p is not None and p[0] == p[1] for p in result)
  assert {p[0].name for p in result} == {'HIGHEST'}


# Clients that are drawn within a round exchange their models; the k-means of CLoVE has
# 20 K numbers of each client, more than the model here has, and others compare all
# models (topologies_test.py looks at these with a larger one).
EXCHANGES = [
  i
  for i, (name, options) in enumerate(METHODS)
  if not (COMPARES | {'clove'}) & {name, *options}
]


@over_rows(EXCHANGES)
def test_devices_exchange_sums_and_a_few_numbers_of_each_client(index):
  result = programs(index)
  random_federations.check_exchanges(result.whole.as_text(), result.algorithm)


@pytest.mark.slow
@over_rows(ROWS)
def test_a_client_that_fails_is_left_out_and_counted(index):
  skip_if_full_participation_only(index)
  if METHODS[index][0] == 'centralized':
    pytest.skip('One training on the examples of all clients fails as a whole.')
  if METHODS[index][0] == 'fed_amp':
    pytest.skip('alpha follows the number of clients that begin the round.')
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
