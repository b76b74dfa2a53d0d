import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import batching
from fesem_jax.core.batching import Schedule
from fesem_jax.core.types import FederatedData


@pytest.mark.parametrize(('size', 'width'), [(7, 3), (6, 3), (1, 3), (9, 9)])
def test_an_epoch_visits_every_example_once(size, width):
  order = batching.shuffle(jax.random.key(0), jnp.int32(size), 9)
  seen = []
  for step in range(-(-size // width)):
    rows, weights = batching.batch_rows(order, jnp.int32(step), jnp.int32(size), width)
    seen += np.asarray(rows)[np.asarray(weights) > 0].tolist()
  assert sorted(seen) == list(range(size))


def test_order_depends_on_the_key_but_not_on_the_largest_client():
  key = jax.random.key(5)
  short = batching.shuffle(key, jnp.int32(20), 20)
  for largest in (64, 256, 257, 1000):  # More than 256 are sorted in another way.
    long = batching.shuffle(key, jnp.int32(20), largest)
    np.testing.assert_array_equal(short, long[:20])
  full = batching.shuffle(key, jnp.int32(256), 256)
  assert sorted(full.tolist()) == list(range(256))
  np.testing.assert_array_equal(full, batching.shuffle(key, 256, 300)[:256])
  assert (short != batching.shuffle(jax.random.key(6), jnp.int32(20), 20)).any()


def test_number_of_steps():
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
  order = jnp.array([2, 0, 3, 1])
  rows, weights = batching.batch_rows(order, jnp.int32(1), jnp.int32(4), 3)
  np.testing.assert_array_equal(weights, [1, 0, 0])
  np.testing.assert_array_equal(rows, [1, 1, 1])
  got, labels = batching.gather(data, jnp.int32(0), rows)
  np.testing.assert_array_equal(got, np.tile(x[1] / 4, (3, 1)))
  np.testing.assert_array_equal(labels, [1, 1, 1])
  second, _ = batching.gather(data, jnp.int32(1), jnp.array([0, 1]))
  np.testing.assert_array_equal(second, x[4:] / 4)


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
    assert batching._reads_at_once(schedule, data, ids) == (limit > 0)

    @jax.jit
    def steps_of(data, keys):
      orders, at = batching.step_by_step(schedule, data, ids, keys, jax.vmap)
      return jax.lax.scan(lambda held, i: at(i, held), orders, jnp.arange(6))[1]

    return steps_of(data, keys)

  at_once, at_each_step = batches(2**20), batches(0)
  chex.assert_trees_all_equal(at_once, at_each_step)
  assert at_once[0].shape == (6, 4, 3, 2, 3)
  # Nothing is read ahead of a few steps of many examples.
  assert not batching._reads_at_once(Schedule(batch_size=3, steps=2), data, ids)
