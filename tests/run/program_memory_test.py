"""What a round and the data take beyond what the state holds."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import gram_matrices, sharding
from fesem_jax.core.arrangement import arrange
from fesem_jax.run.runner import placed_state
from fesem_jax.server import trimmed_mean
from tests.support import helpers

CLIENTS = 32
SHAPE = (40,)  # A model of 40 * 250 + 250 * 3 parameters and biases.


ROUNDS = [
  ('non_fed', {}, 0), ('fed_dane', {}, 1), ('scaffold', {}, 0),
  ('robust', {'num_clusters': 2}, 1), ('fed_cluster', {'max_clusters': 2}, 1),
  ('fesem', {'num_clusters': 2}, 0), ('hypo_cluster', {'num_clusters': 2}, 0),
  ('fesem', {'num_clusters': 2, 'client_state': 'streamed'}, 0),
  ('fesem', {'num_clusters': 2, 'aggregation': 'norm_bound'}, 0), ('fed_avg', {}, 0),
  ('fed_avg', {'aggregation': 'norm_bound'}, 1),
]  # fmt: skip


# A stack of clients' models, streams, and a stack of the round's own.
BY_DAY = [ROUNDS[i] for i in (2, 7, 10)]


# Rounds without a stack of their own hold no more on one device than on each of two.
@pytest.mark.parametrize(
  ('name', 'options', 'stacks', 'devices'),
  [
    pytest.param(*row, d, marks=[pytest.mark.nightly] * (row not in BY_DAY))
    for row in ROUNDS
    for d in (1, 2)
    if d == 2 or row[2]
  ],
)
def test_stacks_of_models_that_a_round_needs(
  name, options, stacks, devices, monkeypatch
):
  for module, most in ((trimmed_mean, '_NUMBERS_AT_ONCE'), (gram_matrices, '_BLOCK')):
    monkeypatch.setattr(module, most, 2**12)  # Small beside a stack.
  data = helpers.federation([4] * CLIENTS, shape=SHAPE)
  local = helpers.local(chunk=1, devices=devices, hidden=(250,), shape=SHAPE)
  data = sharding.replicate(data, local.mesh)
  algorithm = algorithms.build(name, local, **options)
  key = sharding.replicate(jax.random.key(0), local.mesh)
  state = placed_state(algorithm, data, jax.eval_shape(algorithm.init, key, data))
  shardings = jax.tree.map(lambda s: s.sharding, state)
  step = jax.jit(algorithm.step, donate_argnums=0, out_shardings=(shardings, None))
  program = step.lower(state, data, helpers.everyone(data), key).compile()
  used = program.memory_analysis()
  model = sum(
    4 * s.size
    for s in jax.tree.leaves(jax.eval_shape(local.model.init, jax.random.key(0)))
  )
  # On each device: its share of the stacks, and some models of centers and chunks.
  fresh = used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
  assert fresh < (stacks * CLIENTS / devices + 14) * model


def test_devices_of_one_process_share_the_data():
  local = helpers.local(devices=2)
  data = helpers.federation([6, 3, 9], shape=(6,))
  train, _ = arrange(local, data, data)
  for array in (train.x, train.y):
    places = [s.data.unsafe_buffer_pointer() for s in array.addressable_shards]
    assert len(places) == 2
    assert len(set(places)) == 1
  before = np.asarray(train.x).copy()
  data.x[:] = 0  # What the caller does with its arrays changes nothing.
  np.testing.assert_array_equal(train.x, before)
