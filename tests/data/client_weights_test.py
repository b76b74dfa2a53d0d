"""Weights of clients in means."""

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import algorithms, data
from fesem_jax.core import prng_streams
from fesem_jax.data.splits import with_weights
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import SIZES, assert_close, federation, run

WEIGHTS = [0.5, 0.25, 0.0, 2.0, 1.0, 0.125]


def by_name(weights):
  return {f'c{i}': weight for i, weight in enumerate(weights)}


def stream(number):
  return prng_streams.fold(jax.random.key(3), number)


@pytest.mark.parametrize(('weights', 'devices'), [(WEIGHTS, 1), (by_name(WEIGHTS), 2)])
def test_means_match_a_float64_reference_in_a_run(weights, devices):
  train, local = federation(), helpers.local(devices=devices, hidden=(5,))
  algorithm = algorithms.build('fed_avg', local, weighting=weights)
  result = fj.simulate(algorithm, train, train, rounds=1, seed=3, finetune_epochs=0)
  key = jax.random.fold_in(stream(prng_streams.ROUNDS), 1)
  start = jax.jit(local.model.init)(stream(prng_streams.INIT))
  trained = []
  for i in range(len(SIZES)):
    batches = helpers.batches(train, local.schedule, i, key)
    params_values, _ = reference.local_sgd(reference.from_params(start), batches, 0.1)
    trained.append(reference.flat(params_values))
  expected = np.average(trained, axis=0, weights=WEIGHTS)
  params = result.deployed.params()
  assert_close(reference.flat(reference.from_params(params)), expected, rtol=1e-3)


BY_NIGHT = [
  ('fesem', {'num_clusters': 2, 'client_state': 'streamed'}),
  ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 1}),
  ('fesem', {'num_clusters': 2, 'recluster_every': 2, 'track_objective': True}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'options'), [
  ('fed_avg', {}),
  ('fesem', {'num_clusters': 2}),
  *(pytest.param(*row, marks=pytest.mark.nightly) for row in BY_NIGHT),
])  # fmt: skip
def test_weights_like_sizes_are_those_by_examples(name, options):
  """Also where they add up to less than 1: at an exact scale only a bound shows."""
  train, local = federation(), helpers.local(model='logistic')
  weighted = with_weights(2.0**-10 * np.array(SIZES), train)
  a, b = (
    run(algorithms.build(name, local, weighting=weighting, **options), split)
    for weighting, split in (('by_examples', train), ('by_weight', weighted))
  )
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_weights_follow_their_clients():
  train = with_weights(by_name(WEIGHTS), federation())
  moved = train.reorder(np.array([3, 0, 5]), num_clients=4)
  assert moved.info.names.tolist() == ['c3', 'c0', 'c5']
  np.testing.assert_array_equal(moved.weights, [2.0, 0.5, 0.125, 0.0])
  np.testing.assert_array_equal(moved.info.weights, [2.0, 0.5, 0.125])
  np.testing.assert_array_equal(moved.weights_of(np.array([1, 4])), [0.5, 0.0])
  kept, left = data.hold_out(train)
  np.testing.assert_array_equal(kept.weights, np.float32(WEIGHTS))
  np.testing.assert_array_equal(left.weights, np.float32(WEIGHTS))


@pytest.mark.parametrize(
  ('weights', 'message'),
  [({'c0': 1.0}, 'weighting: clients'),
   ([1.0, 2.0], 'weighting: shape'),
   ([np.nan] * 6, 'weighting')],
)  # fmt: skip
def test_bad_weights_are_refused(weights, message):
  with pytest.raises(UserError, match=message):
    with_weights(weights, federation())


def test_data_without_weights_are_refused():
  algorithm = algorithms.build('fed_avg', helpers.local(), weighting='by_weight')
  with pytest.raises(UserError, match='weighting'):
    fj.simulate(algorithm, federation(), federation(), rounds=1)
