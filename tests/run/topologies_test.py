"""Rounds compiled for TPUs that are not there: what they hold and exchange."""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import optax
import pytest

from benchmarks.common import (
  calls_to_host,
  gathers_of_models,
  products_by_precision,
)
from fesem_jax import algorithms, models
from fesem_jax.core.federated_data import Groups
from fesem_jax.core.local_training import Machine, local_training
from fesem_jax.core.placement import bytes_of
from fesem_jax.run import planner
from fesem_jax.run.program_memory import collectives_of
from tests.support.methods import COMPARES, IDS, METHODS, ONE_OF_EACH_SHAPE

pytestmark = [
  # Programs for chips that are not there are written to the cache, but not read.
  pytest.mark.filterwarnings('ignore:Error reading persistent compilation cache')
]
pytest.importorskip(
  'libtpu', reason="the compiler for TPUs is not there: pip install 'fesem_jax[tpu]'"
)

CLIENTS, CHUNK, HIDDEN = 64, 8, 64
SHAPE = (8, 16)  # 128 numbers: a whole tile.
TRAIN = planner.zeros(CLIENTS, 30 * CLIENTS, 40, SHAPE, 10)
GROUPS = Groups(np.zeros(CLIENTS, np.int32), 2)
DATA = (
  dataclasses.replace(TRAIN, groups=GROUPS),
  planner.zeros(CLIENTS, 5 * CLIENTS, 8, SHAPE, 10),
)

# A row for each shape of round, and those of FeSEM that stream and cluster anew.
ROWS = [
  row
  for i, row in enumerate(METHODS)
  if i in ONE_OF_EACH_SHAPE or {'client_state', 'recluster_every'} & set(row[1])
]


def planned(
  name, options, devices, data=DATA, hidden=HIDDEN, shared_start='auto',
  precision='highest', **run,
):  # fmt: skip
  mesh = planner.mesh_of('v5e:2x2', devices)
  local = local_training(
    models.build('mlp', SHAPE, 10, [hidden]),
    optax.sgd(0.1),
    batch_size=10,
    machine=Machine(
      clients_per_chunk=CHUNK, mesh=mesh, shared_start=shared_start, precision=precision
    ),
  )
  algorithm = algorithms.build(name, local, **options)
  return planner.plan(algorithm, *data, **{'parts': ('round',), **run})


def size_of_model(hidden=HIDDEN):
  model = models.build('mlp', SHAPE, 10, [hidden])
  params = jax.eval_shape(model.init, jax.random.key(0))
  return 4 * sum(math.prod(x.shape) for x in jax.tree.leaves(params))


# By day centers, and models of clients.
BY_DAY = ('fesem', 'scaffold')


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    pytest.param(
      *row,
      id=IDS[METHODS.index(row)],
      marks=[pytest.mark.nightly]
      * (row[0] not in BY_DAY or 'recluster_every' in row[1]),
    )
    for row in ROWS
  ],
)
def test_a_round_on_four_chips(name, options):
  result = planned(name, options, 4)
  used, model = result.round.memory, size_of_model()
  assert not calls_to_host(result.round.text)
  assert used.aliased >= result.stack_bytes
  # Models are added up; all else that is exchanged is a few numbers for each client.
  compares = bool(COMPARES & {name, *options})
  most = CLIENTS * model if compares else model
  others = [c for c in collectives_of(result.round.text) if c.kind != 'all-reduce']
  assert all(c.bytes <= most for c in others), others
  if not compares:
    # In models of a chunk. Padded to tiles, each takes more than its numbers; matching
    # holds the squared distances of all pairs of units too.
    room = 52 if name == 'fesem_ma' else 20
    assert used.temporaries <= room * CHUNK * model


@pytest.mark.parametrize(
  'precision', ['default', pytest.param('highest', marks=pytest.mark.nightly)]
)
def test_products_have_the_precision_asked_for_and_centers_are_not_copied(precision):
  options = {'num_clusters': 4, 'client_state': 'streamed'}
  result = planned('fesem', options, 4, shared_start='off', precision=precision)
  text, model = result.round.text, size_of_model()
  # Forward two; backward two kernels and one input; those of the E-step are `highest`.
  products = products_by_precision(text)
  assert products['default' if precision == 'default' else 'highest'] >= 5
  if precision == 'highest':
    assert set(products) == {'highest'}
  assert set(products) <= {precision, 'highest'}
  assert not gathers_of_models(text, {(128, HIDDEN), (HIDDEN, 10)}, 4)
  added = [c for c in collectives_of(text) if c.kind == 'all-reduce']
  assert sum(c.bytes for c in added) <= 1.1 * 4 * model  # K centers and scalars.


@pytest.mark.nightly
def test_the_first_clustering_leaves_models_on_their_chips():
  result = planned('fesem', {'num_clusters': 4}, 4, parts=('start',))
  model = size_of_model()
  for kind, sent in collectives_of(result.programs[0].text):
    # Inner products take a share of all models from each chip; else it is centers.
    most = CLIENTS * model / 4 if kind == 'all-to-all' else 4 * model + 100
    assert sent <= most, (kind, sent)


def test_each_of_four_chips_holds_its_clients_data():
  how = {'clients_per_round': 18, 'data_placement': 'sharded'}
  result = planned('fed_avg', {}, 4, **how)
  assert result.clients_per_device == 5
  of_clients = 4 * 2 * (3 * CLIENTS + 1)  # Offsets, ids and groups: whole on each.
  assert result.data_bytes <= bytes_of(*DATA) // 4 + of_clients + 100
  largest = max(c.bytes for c in collectives_of(result.round.text))
  assert largest <= size_of_model() + 100 < bytes_of(*DATA) // 4


# Methods that can keep their clients' models in the host's memory; clients of a round.
OFFLOADED = [
  ('fesem', {'num_clusters': 2, 'init_clients': 16}, 0),
  ('fesem', {'num_clusters': 2, 'init_clients': 16}, 64),
  ('non_fed', {}, 0),
  ('ditto', {}, 64),
  ('scaffold', {}, 0),
]
MANY, WIDE = 2048, 256


def offloaded(name, options, **how):
  data = [planner.zeros(MANY, n * CLIENTS, m, SHAPE, 10) for n, m in ((30, 40), (5, 8))]
  return planned(name, options | {'client_state': 'offloaded'}, 4, data, WIDE, **how)


@functools.cache
def offloaded_start(row):
  """What the start needs, which does not depend on the clients of a round."""
  name, options, _ = OFFLOADED[row]
  return offloaded(name, options, parts=('start',)).programs[0].memory


@pytest.mark.parametrize(
  'row',
  [
    pytest.param(i, id=f'{row[0]}-{row[2]}', marks=[pytest.mark.nightly] * (i != 2))
    for i, row in enumerate(OFFLOADED)
  ],
)
def test_models_stay_in_the_memory_of_the_host(row):
  name, options, chosen = OFFLOADED[row]
  result = offloaded(name, options, clients_per_round=chosen)
  first = next(i for i, other in enumerate(OFFLOADED) if other[:2] == (name, options))
  start, used = offloaded_start(first), result.round.memory
  model, on_each = size_of_model(WIDE), MANY // 4
  assert result.stack_bytes == 0
  assert on_each * model <= result.offloaded_bytes <= 1.2 * on_each * model
  # Formed there, then taken over by each round, which holds the cohort's rows beside.
  of_cohort = result.offloaded_bytes * chosen // MANY
  assert start.on_host == result.offloaded_bytes
  assert used.on_host == result.offloaded_bytes + of_cohort
  assert not calls_to_host(result.round.text)
  # As without any stack, and nothing like it on the device.
  bound = 20 * CHUNK * model
  assert 3 * bound < result.offloaded_bytes
  assert used.temporaries <= bound
  assert start.temporaries <= bound
  if name == 'non_fed':
    assert reads_ahead(result.round.text)


def reads_ahead(text):
  """Whether models are on their way to the device while others train."""
  for body in text.split('\n\n'):
    kinds = re.findall(r' (dynamic-slice-start|dynamic-slice-done|while)\(', body)
    order = ' '.join(kinds)
    if re.search(r'dynamic-slice-start( while)+ dynamic-slice-done', order):
      return True
  return False
