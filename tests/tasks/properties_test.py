"""What holds for every method on random federations, for regression or sequences.

The classification of tests/algorithms/properties_test.py has more cases and options:
no method asks for the task, so few cases are enough here, of one task by day, and of
both by night for methods whose rounds differ.
"""

import functools

import chex
import flax.linen as nn
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms, models
from fesem_jax.core import sharding
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError
from tests.support import random_federations
from tests.support.methods import (
  ALL_CLIENTS,
  METHODS,
  ONCE,
  SHAPES_OF_ROUND,
  deployed,
)
from tests.support.nights import rest_by_night
from tests.support.random_federations import CLIENTS, FULL, MOST, Case, Programs

FEATURES, TOKENS, LENGTH, CASES = 3, 4, 5, 8
GROUPS = np.arange(CLIENTS) % 2
OF_SIX = Case((4, 3, 5, 2, 5, 1))
NIGHTLY = pytest.mark.nightly
OPTIONS = {METHODS[i][0]: METHODS[i][1] for i in ONCE}


class NextToken(nn.Module):
  """Logits of the next token from the current one alone."""

  @nn.compact
  def __call__(self, x):
    x = nn.Embed(TOKENS, 6, name='embedding')(x.astype(jnp.int32))
    return nn.Dense(TOKENS, name='logits')(x)


def regression(case, *order, **spoiled):
  """Two groups of clients with linear functions of their own."""
  x = np.random.default_rng(case.seed).normal(size=(CLIENTS, MOST, FEATURES))
  weights = np.array([[1.0, 2.0, -1.0], [-2.0, 0.5, 1.0]])[GROUPS]
  y = np.einsum('mnf,mf->mn', x, weights)[..., None] + 0.5
  x, y = x.astype(np.float32), y.astype(np.float32)
  fields = {'num_classes': 1, 'task': 'regression'}
  return random_federations.arranged(case, x, y, *order, **spoiled, **fields)


def sequences(case, *order, **spoiled):
  """Two groups that count up or down, of any length, also without a known token."""
  rng = np.random.default_rng(case.seed)
  first = rng.integers(0, TOKENS, (CLIENTS, MOST, 1))
  way = np.where(GROUPS, -1, 1)[:, None, None]
  whole = (first + way * np.arange(LENGTH + 1)) % TOKENS
  known = np.arange(LENGTH) < rng.integers(0, LENGTH + 1, (CLIENTS, MOST, 1))
  x, y = whole[..., :-1].astype(np.float32), np.where(known, whole[..., 1:], -1)
  fields = {'num_classes': TOKENS, 'task': 'sequence'}
  y = y.astype(np.int32)
  return random_federations.arranged(case, x, y, *order, **spoiled, **fields)


DATA = {'regression': regression, 'sequence': sequences}
MODELS = {
  'regression': models.build('mlp', (FEATURES,), 1, (4,), task='regression'),
  'sequence': models.from_flax(NextToken(), (LENGTH,), task='sequence'),
}


def local(task, chunk=3, devices=1):
  mesh, schedule = sharding.client_mesh(devices), Schedule(4, 1)
  return LocalTraining(MODELS[task], optax.sgd(0.05), schedule, chunk, mesh)


@functools.lru_cache(maxsize=4)
def programs(name, task):
  """What the tests of a row share."""
  algorithm = algorithms.build(name, local(task), **OPTIONS[name])
  init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
  return Programs(algorithm, init, step, DATA[task], name in ALL_CLIENTS)


# FeSEM of matching units needs layers in a row, which the model of sequences has not;
# FedRC, PACFL and FLUX need classes, MOON one vector for each example.
REFUSED = {
  ('fesem_ma', 'sequence'), ('moon', 'sequence'),
  ('fed_rc', 'sequence'), ('fed_rc', 'regression'),
  ('pacfl', 'sequence'), ('pacfl', 'regression'),
  ('flux', 'sequence'), ('flux', 'regression'),
}  # fmt: skip
POSSIBLE = {
  name: [task for task in DATA if (name, task) not in REFUSED] for name in OPTIONS
}
# One task of each method, by turns; by night both of methods whose rounds differ.
EVERY_METHOD = [
  (name, found[at % len(found)]) for at, (name, found) in enumerate(POSSIBLE.items())
  if found
]  # fmt: skip
MORE = [
  (name, task) for name in SHAPES_OF_ROUND for task in POSSIBLE[name]
  if (name, task) not in EVERY_METHOD
]  # fmt: skip
# By day those that tests/algorithms/properties_test.py leaves to the night, a global
# model and centers, but for what differs from these in a penalty or the server's step:
# tests/algorithms/reference_test.py has their rounds, precision and checkpoints.
BY_DAY = [
  row for row in EVERY_METHOD
  if row[0] in (
    'fed_avg', 'fesem', 'fed_rep', 'fed_group', 'stocfl', 'fed_few', 'fed_gwc',
    'fed_dyn', 'per_fed_avg', 'fed_ala', 'moon', 'fed_buff', 'centralized',
  )
]  # fmt: skip
TRACED = [
  (name, task) for name in POSSIBLE for task in POSSIBLE[name]
  if (name, task) not in EVERY_METHOD + MORE or name in ('fed_em', 'robust')
]  # fmt: skip


def over_rows(rows, by_day=tuple(BY_DAY)):
  """A test of each of these rows, of some by night.

  Tests of one row are neighbors: a worker compiles its programs, then forgets them.
  """
  values = [
    pytest.param(row, id='-'.join(row), marks=() if row in by_day else NIGHTLY)
    for row in rows
  ]
  return pytest.mark.parametrize('row', values, scope='module')


@functools.lru_cache(maxsize=CASES)
def round_of(row, case):
  """A round that the tests of a row share: without a database all draw the same."""
  return random_federations.round_of(programs(*row), case)


@pytest.mark.slow
@random_federations.over_properties
# By day tests/algorithms/properties_test.py has what does not depend on the method.
@over_rows(EVERY_METHOD + MORE, [row for row in BY_DAY if row[0] == 'fesem'])
@random_federations.tried(CASES)
@hypothesis.given(random_federations.cases())
def test_properties(row, holds, case):
  holds(round_of(row, case))


@over_rows(EVERY_METHOD + MORE)
def test_training_lowers_the_loss(row):
  made, data = programs(*row), DATA[row[1]](FULL)
  state, losses = made.init(jax.random.key(3), data), []
  for number in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(4), number)
    state, info = random_federations.round_of_all(made, state, data, key)
    losses.append(float(info.train_loss))
  # A step of an adaptive server may be too long at first. Those of Per-FedAvg go by the
  # second batch, here one example of five; per_fed_avg_test.py trains it for longer.
  # A round of L2GD trains or aggregates; l2gd_test.py has both to the digit.
  noisy = row[0] in ('fed_opt', 'l2gd') or row == ('per_fed_avg', 'regression')
  first = 1 if row[0] == 'clove' else 0  # Its first clusters are random.
  assert losses[-1] < losses[first] or noisy
  assert np.isfinite(deployed(made.algorithm, state, data)).all()


@pytest.mark.parametrize(
  'row', rest_by_night(zip(TRACED), by_day=8), ids=['-'.join(row) for row in TRACED]
)
def test_other_tasks_have_the_same_rounds(row):
  name, task = row
  algorithm = algorithms.build(name, local(task), **OPTIONS[name])
  data, key = DATA[task](FULL), jax.random.key(0)
  state = jax.eval_shape(algorithm.init, key, data)
  cohort = random_federations.cohort_of(range(CLIENTS), name in ALL_CLIENTS)
  after, info = jax.eval_shape(algorithm.step, state, data, cohort, key)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
  assert info.train_loss.shape == ()


@pytest.mark.slow
# By day tests/algorithms/reference_test.py splits the data of all but this method.
@over_rows(EVERY_METHOD, [row for row in BY_DAY if row[0] == 'fed_buff'])
def test_data_split_by_client_change_memory_only(row):
  name, task = row
  changes = local(task, 2, 2)._replace(shared_start='on')
  two = algorithms.build(name, changes, **OPTIONS[name])
  random_federations.check_split_data(programs(*row), two, OF_SIX)


@pytest.mark.slow
@over_rows(EVERY_METHOD)
def test_a_round_after_a_checkpoint_is_the_same_to_the_bit(row):
  random_federations.check_a_resumed_round(programs(*row), OF_SIX)


def test_matching_of_units_refuses_a_model_without_a_row_of_layers():
  with pytest.raises(UserError, match='layers run in sequence'):
    algorithms.build('fesem_ma', local('sequence'), num_clusters=2)
