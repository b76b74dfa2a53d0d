"""Random federations of one shape, and what holds for every method on them.

Clients have 0 to 5 examples; cohort, order, key and values are random too. Shapes stay
the same, so a method's programs are compiled once for all of its cases.
"""

import functools
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from fesem_jax.core import placement, prng_streams, sharding
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.core.sampling import coin
from fesem_jax.core.traffic import bytes_of_model
from fesem_jax.core.types import Cohort
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.program_memory import collectives_of
from fesem_jax.run.runner import placed_state
from tests.support.methods import assert_close

# What states hold of each client, [M, ...].
PER_CLIENT = (
  'assignment', 'client_params', 'client_controls', 'client_alphas',
  'client_gradients', 'client_losses', 'heads', 'head_weights', 'seen', 'joined',
  'learned', 'mixture', 'classes', 'importance', 'estimated', 'gradients', 'counts',
  'numbers_sent', 'streaks', 'durations', 'interactions', 'steps',
)  # fmt: skip
# States within states: of a wrapped method, StoCFL's clusters and FedBuff's clients.
NESTED = {'method', 'clusters', 'running'}
CLIENTS, MOST = 6, 5

# `make properties` tries so many cases in place of those of every run of the tests, and
# keeps those that failed.
WANTED = int(os.environ.get('FESEM_PROPERTIES', '0'))
_USUAL = 1500
_FAILED = pathlib.Path(__file__).parents[2] / '.hypothesis' / 'properties'


def tried(cases):
  """Hypothesis' settings of a test that usually tries so many random cases."""
  quiet = {'deadline': None, 'suppress_health_check': list(hypothesis.HealthCheck)}
  if WANTED:
    kept = DirectoryBasedExampleDatabase(_FAILED)
    most = -(-WANTED * max(1, cases) // _USUAL)
    return hypothesis.settings(max_examples=most, database=kept, **quiet)
  if not cases:  # Only those that are written out.
    quiet |= {'phases': [hypothesis.Phase.explicit]}
  return hypothesis.settings(
    max_examples=max(1, cases), derandomize=True, database=None, **quiet
  )


class Case(NamedTuple):
  """A federation and a round, the first or the second one."""

  sizes: tuple[int, ...]
  seed: int = 0
  cohort: tuple[int, ...] = ()
  order: tuple[int, ...] = tuple(range(CLIENTS))
  second: bool = False


FULL = Case((MOST,) * CLIENTS)


@st.composite
def cases(draw):
  sizes = draw(st.tuples(*[st.integers(0, MOST)] * CLIENTS).filter(any))
  drawn = draw(st.sets(st.integers(0, CLIENTS - 1), min_size=1))
  order = draw(st.permutations(range(CLIENTS)))
  seed, second = draw(st.integers(0, 999)), draw(st.booleans())
  return Case(sizes, seed, tuple(sorted(drawn)), tuple(order), second)


def arranged(case, x, y, order=tuple(range(CLIENTS)), spoiled=(), **fields):
  """The case's clients in an order; those in `spoiled` hold other values.

  Rows that belong to no client are not a number.

  Args:
    case: whose sizes to take.
    x: [CLIENTS, MOST, ...] float32.
    y: [CLIENTS, MOST, ...].
    order: of the clients.
    spoiled: clients whose values change.
    **fields: of `FederatedData`.
  """
  x, y = x.copy(), y.copy()
  for i in spoiled:
    x[i], y[i] = (3e38, np.nan)[i % 2], 0
  sizes = np.array(case.sizes)[list(order)]
  flat_x = np.full((CLIENTS * MOST, *x.shape[2:]), np.nan, np.float32)
  flat_y = np.zeros((CLIENTS * MOST, *y.shape[2:]), y.dtype)
  flat_x[: sizes.sum()] = np.concatenate([x[i, : case.sizes[i]] for i in order])
  flat_y[: sizes.sum()] = np.concatenate([y[i, : case.sizes[i]] for i in order])
  return FederatedData(
    x=flat_x, y=flat_y,
    offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
    client_ids=np.array(order, np.int32), scale=1.0, max_examples=MOST,
    info=ClientInfo(np.array([f'c{i}' for i in order])),
    groups=Groups(np.array(order, np.int32) % 2, 2), **fields,
  )  # fmt: skip


class Programs(NamedTuple):
  """A method's compiled functions, which take and give arrays of the host.

  Attributes:
    algorithm: the method.
    init: its start.
    step: its round, of a cohort that is named.
    data_of: (case, order, spoiled) -> `FederatedData`.
    full_only: whether it needs all clients in each round; `step` is then of all.
    whole: the round of all clients, with other chunks on two devices; None for `step`.
    on_two: `step` with other chunks on two devices; None leaves it out.
  """

  algorithm: Any
  init: Callable
  step: Callable
  data_of: Callable
  full_only: bool = False
  whole: Callable | None = None
  on_two: Callable | None = None


def round_of_all(programs, state, data, key):
  """A round of all clients."""
  everyone = programs.full_only or programs.whole is not None
  step, state = programs.whole or programs.step, jax.device_get(state)
  return jax.device_get(step(state, data, cohort_of(range(CLIENTS), everyone), key))


def cohort_of(ids, everyone=False):
  """These clients; empty places fill up to all."""
  if everyone:
    return Cohort(np.arange(CLIENTS, dtype=np.int32), everyone=True)
  padded = np.full(CLIENTS, CLIENTS, np.int32)
  padded[: len(ids)] = ids
  return Cohort(padded, everyone=False)


@functools.partial(jax.jit, static_argnames='rate')
def dropped_of(key, data, rate):
  """[M] bool, the clients that drop out of a round."""
  return coin(key, data, jnp.arange(CLIENTS), rate, prng_streams.DROPOUT)


def own_parts(state, ids):
  """What the state holds of each of these clients."""

  def pick(x):
    return np.asarray(x)[np.array(ids, int)]  # On the host: one by one it is slow.

  fields = [f for f in PER_CLIENT if f in state._fields]
  result = {f: jax.tree.map(pick, getattr(state, f)) for f in fields}
  for f in NESTED & set(state._fields):
    result[f] = own_parts(getattr(state, f), ids)
  return result


def reordered(state, order):
  """The state when clients come in another order."""
  parts = own_parts(state, order)
  for f in NESTED & parts.keys():
    parts[f] = reordered(getattr(state, f), order)
  if 'interactions' in parts:  # Of all pairs.
    parts['interactions'] = parts['interactions'][:, np.array(order, int)]
  return state._replace(**parts)


def numbers(tree):
  """All numbers of a tree in one float64 vector."""
  leaves = [np.ravel(np.asarray(x)).astype(np.float64) for x in jax.tree.leaves(tree)]
  return np.concatenate([*leaves, np.zeros(0)])


def alike(a, b, rtol=0.0, atol=0.0):
  """Whether two trees of host arrays agree: one comparison, not one for each leaf."""
  leaves = [jax.tree.leaves(tree) for tree in (a, b)]
  forms = [[(np.shape(x), np.asarray(x).dtype) for x in each] for each in leaves]
  return (
    jax.tree.structure(a) == jax.tree.structure(b)
    and forms[0] == forms[1]
    and np.allclose(*map(numbers, leaves), rtol=rtol, atol=atol, equal_nan=True)
  )


def assert_same(a, b):
  """Equal up to rounding."""
  a, b, most = *jax.device_get((a, b)), {'rtol': 1e-4, 'atol': 1e-5}
  if not alike(a, b, **most):
    chex.assert_trees_all_close(a, b, **most)  # It names the leaf.
    raise AssertionError('Trees differ in their structure, shapes or dtypes.')


def assert_equal(a, b):
  """Equal to the bit."""
  a, b = jax.device_get((a, b))
  if not alike(a, b):
    chex.assert_trees_all_equal(a, b, strict=True)
    raise AssertionError('Trees differ in their structure.')


class Round(NamedTuple):
  """A round of a case: host arrays, and who took part."""

  programs: Programs
  case: Case
  data: Any
  key: jax.Array
  ids: Sequence[int]
  state: Any
  after: Any
  info: Any
  takes_part: list[int]

  def step(self, *args):
    """Another round of the same kind."""
    return jax.device_get(self.programs.step(*args))

  @property
  def cohort(self):
    return cohort_of(self.ids, self.programs.full_only)


def centers_are_distinct(state):
  """False if rounding decides which of FedSoft's centers an example is nearest to.

  Centers whose weights of the clients are proportional are equal but for rounding, such
  as all centers of a single client.
  """
  if 'importance' not in state._fields:
    return True
  leaves = [np.asarray(x) for x in jax.tree.leaves(state.centers)]
  flat = np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)
  pairs = itertools.combinations(flat, 2)
  return not any(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def round_of(programs, case):
  """The `Round` of a case."""
  data, key = programs.data_of(case), jax.random.key(case.seed)
  state = jax.device_get(programs.init(key, data))
  if case.second:  # What clients and server remember is not as at the start.
    first_key = jax.random.fold_in(key, 1)
    state, _ = round_of_all(programs, state, data, first_key)
  hypothesis.assume(centers_are_distinct(state))
  ids = range(CLIENTS) if programs.full_only else case.cohort
  cohort = cohort_of(ids, programs.full_only)
  after, info = jax.device_get(programs.step(state, data, cohort, key))
  dropped = np.asarray(dropped_of(key, data, programs.algorithm.local.dropout_rate))
  takes_part = [i for i in ids if case.sizes[i] and not dropped[i]]
  return Round(programs, case, data, key, ids, state, after, info, takes_part)


def models_are_finite_and_counts_add_up(made):
  """Whatever the clients hold."""
  info, sizes = made.info, np.array(made.case.sizes)
  assert np.isfinite(numbers(made.after)).all()
  assert int(info.trained) == len(made.takes_part)
  assert int(info.failed) == 0
  if info.clusters is not None:
    # Those that have yet to join have no cluster.
    joined = getattr(made.after, 'joined', None)
    exist = sizes > 0 if joined is None else (sizes > 0) & np.asarray(joined)
    assert int(info.clusters.sizes.sum()) == exist.sum()


def chunks_and_devices_change_nothing_but_rounding(made):
  """And all clients as a cohort are full participation."""
  programs, state, data, key = made[0], made.state, made.data, made.key
  if programs.whole is not None:
    everyone, other = round_of_all(programs, state, data, key)
    listed, result = made.after, made.info
    if not programs.full_only:
      listed, result = made.step(state, data, cohort_of(range(CLIENTS)), key)
    assert_same(listed, everyone)
    assert_close(result.train_loss, other.train_loss)
  if programs.on_two is not None:
    elsewhere, other = programs.on_two(state, data, made.cohort, key)
    assert_same(made.after, elsewhere)
    assert_close(made.info.train_loss, other.train_loss)


def order_of_clients_permutes_the_results(made):
  """Of all clients of the federation."""
  order, full_only = made.case.order, made.programs.full_only
  turned = made.programs.data_of(made.case, order)
  moved = cohort_of(np.argsort(order)[list(made.ids)], full_only)
  permuted, _ = made.step(reordered(made.state, order), turned, moved, made.key)
  assert_same(reordered(made.after, order), permuted)


def order_of_a_cohort_and_empty_clients_in_it_do_not_matter(made):
  """Of methods whose rounds have a cohort."""
  if made.programs.full_only:
    return
  sound = [i for i in made.ids if made.case.sizes[i]]
  shuffled, _ = made.step(made.state, made.data, cohort_of(sound[::-1]), made.key)
  keep = np.array([i for i in range(CLIENTS) if made.case.sizes[i]])
  assert_same(reordered(made.after, keep), reordered(shuffled, keep))


def clients_outside_of_the_cohort_are_left_alone(made):
  """They keep what they have, and what they hold is not looked at."""
  if made.programs.full_only or hasattr(made.state, 'sent'):  # Of `centralized`.
    return
  outside = [i for i in range(CLIENTS) if i not in made.ids]
  if 'clusters' not in made.state._fields:  # Which merge with all of their clients.
    assert_equal(own_parts(made.after, outside), own_parts(made.state, outside))
  data = made.programs.data_of(made.case, spoiled=outside)
  spoiled, _ = made.step(made.state, data, made.cohort, made.key)
  assert_equal(made.after, spoiled)


# What holds for every method on every federation.
PROPERTIES = (
  models_are_finite_and_counts_add_up,
  chunks_and_devices_change_nothing_but_rounding,
  order_of_clients_permutes_the_results,
  order_of_a_cohort_and_empty_clients_in_it_do_not_matter,
  clients_outside_of_the_cohort_are_left_alone,
)
over_properties = pytest.mark.parametrize(
  'holds', PROPERTIES, ids=[holds.__name__ for holds in PROPERTIES]
)


def restored(state):
  """A state that a checkpoint held."""
  with tempfile.TemporaryDirectory() as folder:
    checkpoints = Checkpoints(pathlib.Path(folder))
    checkpoints.save(1, state)
    assert checkpoints.latest_round() == 1
    result = checkpoints.load(1, jax.tree.map(np.zeros_like, state))
    checkpoints.close()
  return result


def check_a_resumed_round(programs, case):
  """Asserts that a round after a checkpoint is the same to the bit."""
  data = programs.data_of(case)
  state = programs.init(jax.random.key(case.seed), data)
  state = round_of_all(programs, state, data, jax.random.key(1))[0]
  whole, resumed = (
    round_of_all(programs, x, data, jax.random.key(2)) for x in (state, restored(state))
  )
  assert_equal(whole, resumed)


def placed_as_in_a_run(algorithm, data, key):
  """Shapes of a method's state where a run has them, and where they are."""
  shapes = jax.eval_shape(algorithm.init, key, data)
  shapes = placed_state(algorithm, data, shapes)
  return shapes, jax.tree.map(lambda s: s.sharding, shapes)


def check_split_data(programs, two, case):
  """Asserts that data split by client, and two devices, change memory only.

  Args:
    programs: `Programs`.
    two: the method on two devices.
    case: `Case`.
  """
  data, key, mesh = programs.data_of(case), jax.random.key(2), two.local.mesh
  state = programs.init(jax.random.key(0), data)
  state, _ = round_of_all(programs, state, data, jax.random.key(1))
  # Each device trains clients that it has: the first three, and two of the others.
  some = range(CLIENTS) if programs.full_only else (0, 1, 2, 3, 5)
  cohort = cohort_of(some, programs.full_only)
  want, info = programs.step(state, data, cohort, key)
  split = placement.place(data, mesh, 'sharded')
  state, key = sharding.replicate((state, key), mesh)
  got, result = jax.jit(two.step)(state, split, cohort, key)
  assert_same(got, want)
  assert_close(info.train_loss, result.train_loss)
  assert int(info.trained) == int(result.trained) > 2


def check_exchanges(text, algorithm):
  """Asserts that devices exchange sums, and a few numbers of each client.

  Args:
    text: of a compiled round on several devices.
    algorithm: the method.
  """
  others = [c for c in collectives_of(text) if c.kind != 'all-reduce']
  assert all(c.bytes <= bytes_of_model(algorithm.local) for c in others), others
