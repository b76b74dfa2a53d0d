"""Rounds compiled for TPUs that are not there: what they hold and exchange."""

import math

import jax
import numpy as np
import optax
import pytest

from fesem_jax import algorithms, models, planning, topologies
from fesem_jax.planning import Outline, Split
from fesem_jax.training import local_training
from tests.methods import IDS, METHODS

pytestmark = [
  # Programs for chips that are not there are written to the cache, but not read.
  pytest.mark.filterwarnings('ignore:Error reading persistent compilation cache'),
]
pytest.importorskip(
  'libtpu', reason="the compiler for TPUs is not there: pip install 'fesem_jax[tpu]'"
)

CLIENTS, CHUNK = 64, 8
OUTLINE = Outline(
  CLIENTS, Split(30 * CLIENTS, 40), Split(5 * CLIENTS, 8), (8, 8), np.dtype('uint8'), 10
)

# What compares clients with each other exchanges their models: a sort of every
# coordinate, inner products of all pairs, k-means on all models.
COMPARES = {'fed_cluster', 'robust', 'recluster_every'}

# A row for each method, and those of FeSEM that stream and cluster anew.
ROWS = [
  row
  for i, row in enumerate(METHODS)
  if row[0] not in [name for name, _ in METHODS[:i]]
  or {'client_state', 'recluster_every'} & set(row[1])
]


def planned(name, options, devices, **how):
  mesh = topologies.mesh_of('v5e:2x2', devices)
  local = local_training(
    models.build('mlp', (8, 8), 10, [64]),
    optax.sgd(0.1),
    num_clients=CLIENTS,
    batch_size=10,
    clients_per_chunk=CHUNK,
    mesh=mesh,
  )
  algorithm = algorithms.build(name, local, **options)
  return planning.plan(algorithm, OUTLINE, parts=('start', 'round'), **how)


def size_of_model():
  params = jax.eval_shape(models.build('mlp', (8, 8), 10, [64]).init, jax.random.key(0))
  return 4 * sum(math.prod(x.shape) for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
  ('name', 'options'), ROWS, ids=[IDS[METHODS.index(row)] for row in ROWS]
)
def test_a_round_on_four_chips(name, options):
  found = planned(name, options, 4)
  used, model = found.round.needs, size_of_model()
  assert not used.to_host
  assert used.aliased >= found.stack
  # Models are added up; all else that is exchanged is a few numbers for each client.
  compares = bool(COMPARES & {name, *options})
  most = CLIENTS * model if compares else model
  others = [c for c in used.collectives if c.kind != 'all-reduce']
  assert all(c.bytes <= most for c in others), others
  if not compares:
    # In models of a chunk. Padded to tiles, each takes more than its numbers; matching
    # holds the squared distances of all pairs of units too.
    room = 52 if name == 'fesem_ma' else 20
    assert used.temporaries <= room * CHUNK * model


def test_one_chip_exchanges_nothing():
  found = planned('fesem', {'num_clusters': 4}, 1)
  assert not found.round.needs.collectives
  assert not found.round.needs.to_host
  assert found.round.needs.aliased >= found.stack >= CLIENTS * size_of_model()


@pytest.mark.parametrize('clients_per_round', [0, 18])
def test_each_of_four_chips_holds_its_clients_data(clients_per_round):
  how = {'clients_per_round': clients_per_round, 'data_placement': 'sharded'}
  found = planned('fed_avg', {}, 4, **how)
  assert found.clients == (5 if clients_per_round else CLIENTS // 4)
  of_clients = 4 * 2 * (2 * CLIENTS + 1)  # Offsets and ids are whole on each.
  assert found.data <= OUTLINE.bytes // 4 + of_clients + 100
  largest = max(c.bytes for c in found.round.needs.collectives)
  assert largest <= size_of_model() + 100 < OUTLINE.bytes // 4
