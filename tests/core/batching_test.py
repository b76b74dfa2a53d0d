import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fesem_jax.core import batching
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from tests.support import helpers

batch_places = jax.jit(batching.batch_places, static_argnums=2)


@jax.jit
def orders(keys, epochs, places, size):
  """Rows at some places of the orders of clients of one size in an epoch each."""

  def one(key, epoch):
    words = jax.random.bits(key, (2,), jnp.uint32)
    return batching.random_rows(words, epoch, places, size)

  return jax.vmap(one)(keys, epochs)


@pytest.mark.parametrize('size', [0, 1, 2, 3, 10, 257, 10_000])
def test_orders_are_permutations_of_each_size(size):
  keys, places = jax.random.split(jax.random.key(size), 5), jnp.arange(max(size, 1))
  result = orders(keys, jnp.arange(5), places, jnp.int32(size))
  np.testing.assert_array_equal(np.sort(result, axis=1), [places] * 5)
  assert (size < 10) or len(np.unique(result, axis=0)) == 5
  few = orders(keys, jnp.arange(5), places[:1], jnp.int32(size))
  np.testing.assert_array_equal(few, result[:, :1])


@pytest.mark.parametrize('size', [2, 3, 4, 6, 10, 100, 10_000])
@pytest.mark.parametrize('epochs', [1, 500])
def test_places_and_pairs_of_places_are_uniform(size, epochs):
  count, bins = 60_000, min(size, 20)
  keys = jax.random.split(jax.random.key(size), count // epochs)
  keys = jnp.repeat(keys, epochs)
  numbers = jnp.tile(jnp.arange(epochs), count // epochs)
  first, last, near = np.asarray(
    orders(keys, numbers, jnp.array([0, size - 1, size // 2]), jnp.int32(size))
  ).T
  for rows in (first, last, near):
    counts = np.bincount(rows * bins // size, minlength=bins)
    assert stats.chisquare(counts).pvalue > 1e-4
  pairs = np.bincount((first * bins // size) * bins + last * bins // size)
  pairs = np.pad(pairs, (0, bins**2 - len(pairs)))
  each = size // bins  # Rows of a bin: those of a pair differ.
  shares = np.full((bins, bins), each * each) - np.eye(bins) * each
  shares = (shares / shares.sum()).ravel()
  kept = shares > 0
  assert not pairs[~kept].any()
  assert stats.chisquare(pairs[kept], count * shares[kept]).pvalue > 1e-4


def test_numbers_of_steps():
  sizes = jnp.array([0, 1, 10, 11])

  def count(**kwargs):
    return batching.num_steps(Schedule(**kwargs), sizes, 11).tolist()

  assert count(batch_size=5, epochs=2) == [0, 2, 4, 6]
  assert count(batch_size=0, epochs=3) == [0, 3, 3, 3]
  assert count(batch_size=5, steps=7) == [0, 7, 7, 7]
  epochs = jnp.array([1, 1, 2, 3])
  steps = batching.num_steps(Schedule(5, epochs=9), sizes, 11, epochs)
  assert steps.tolist() == [0, 1, 4, 9]


def test_examples_are_scaled_and_padding_repeats_the_first_of_the_batch():
  x = np.arange(2 * 6, dtype=np.uint8).reshape(6, 2)
  data = FederatedData.from_arrays(x, np.arange(6) % 3, [4, 2], scale=1 / 4)
  places, weights = batch_places(jnp.int32(1), jnp.int32(4), 3)
  np.testing.assert_array_equal(weights, [1, 0, 0])
  np.testing.assert_array_equal(places, [3, 3, 3])
  rows = jnp.array([1, 1, 1])
  actual, labels = batching.gather(data, jnp.int32(0), rows)
  np.testing.assert_array_equal(actual, np.tile(x[1] / 4, (3, 1)))
  np.testing.assert_array_equal(labels, [1, 1, 1])
  second, _ = batching.gather(data, jnp.int32(1), jnp.array([0, 1]))
  np.testing.assert_array_equal(second, x[4:] / 4)


def side_by_side(schedule, data, ids, keys, steps, factors=None):
  """The batches [steps, C, ...] of clients side by side."""

  @jax.jit
  def run(data, keys, factors):
    def one(id, key, factors):
      at = batching.batches_of_client(schedule, data, id, data.sizes(id), key, factors)
      return jax.lax.map(at, jnp.arange(steps))

    mapped = jax.vmap(one, axis_name=batching.SIDE, out_axes=1)
    return mapped(ids, keys, factors)

  return run(data, keys, factors)


@pytest.mark.parametrize('flat', [False, True])
@pytest.mark.parametrize('steps', [0, 7])
def test_examples_read_at_once_are_those_read_at_each_step(flat, steps, monkeypatch):
  rng, sizes = np.random.default_rng(0), [5, 1, 7, 0, 2]
  x = rng.normal(size=(15, 2, 3)).astype(np.float32)
  data = FederatedData.from_arrays(x, np.arange(15) % 3, sizes, scale=1 / 4)
  if flat:  # As on devices.
    wide = np.pad(x.reshape(15, 6), ((0, 0), (0, 2)))
    data = dataclasses.replace(data, x=wide, flat_from=(2, 3))
  schedule = Schedule(batch_size=3, epochs=2, steps=steps)
  ids = jnp.array([2, 4, 0, 1])  # The rows of client 4 end where the data end.
  keys = jax.random.split(jax.random.key(1), 4)

  def batches(limit):
    monkeypatch.setattr(batching, 'READ_AT_ONCE', limit)
    assert batching._reads_at_once(schedule, data, 4) == (limit > 0)

    return side_by_side(schedule, data, ids, keys, 6)

  at_once, at_each_step = batches(2**20), batches(0)
  chex.assert_trees_all_equal(at_once, at_each_step)
  assert at_once[0].shape == (6, 4, 3, 2, 3)
  # Nothing is read ahead of a few steps of many examples.
  assert not batching._reads_at_once(Schedule(batch_size=3, steps=2), data, 4)


def test_a_batch_of_empty_places_has_finite_features_and_no_weight():
  data = FederatedData.from_arrays(np.ones((5, 2)), [0, 1, 2, 1, 2], [2, 3, 0])
  keys, empty = jax.random.split(jax.random.key(0), 2), jnp.array([2, 3])
  x, y, weights, _ = side_by_side(Schedule(2), data, empty, keys, 1)
  x, y, weights = x[0], y[0], weights[0]
  np.testing.assert_array_equal(x, np.ones((2, 2, 2)))
  assert set(y.ravel().tolist()) <= {0, 1, 2}
  assert not weights.any()


def test_clients_begin_their_epochs_each_at_its_own_step():
  data = FederatedData.from_arrays(
    np.arange(14.0)[:, None], np.zeros(14, int), [5, 9], num_classes=2
  )
  schedule, key, ids = Schedule(4, 3), jax.random.key(2), jnp.arange(2)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, ids)
  x, _, weights, _ = side_by_side(schedule, data, ids, keys, 9)
  seen = [
    [x[t, i, np.asarray(weights[t, i]) > 0, 0].tolist() for t in range(9)]
    for i in range(2)
  ]
  for i, steps in ((0, 6), (1, 9)):
    expected = [b[:, 0].tolist() for b, _ in helpers.batches(data, schedule, i, key)]
    assert seen[i][:steps] == expected
