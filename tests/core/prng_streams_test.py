"""Streams of random numbers."""

import jax
import numpy as np

from fesem_jax.core import prng_streams as streams


def test_streams_do_not_coincide():
  key = jax.random.key(5)

  def data(k):
    return tuple(np.asarray(jax.random.key_data(k)).tolist())

  of_clients = {data(jax.random.fold_in(key, i)) for i in range(100)}
  named = [
      streams.DROPOUT, streams.STRAGGLES, streams.STRAGGLER_EPOCHS, streams.NOISE,
      streams.FIRST_COHORT, streams.SAMPLE, streams.DRAWS, streams.MODEL,
      streams.LOCAL, streams.CLUSTERING, streams.SIGNS, streams.REPEATED,
      streams.SHUFFLE, streams.ROUNDING, streams.LAYERS,
      streams.AUGMENTATION,
  ]  # fmt: skip
  others = {data(streams.fold(key, s)) for s in named}
  assert len(others) == len(named)
  assert not of_clients & others
  on_host = [
      streams.PARTITION, streams.SPLIT, streams.SELECT, streams.RELABEL,
      streams.HOLD_OUT, streams.GENERATE, streams.UNSEEN, streams.CORRUPT,
      streams.FIRST_EXAMPLES,
  ]  # fmt: skip

  def first(*words):
    return streams.host_rng(3, *words).random()

  draws = [first(s) for s in on_host]
  draws += [first(streams.COHORT, r) for r in range(1, 50)]
  assert len(set(draws)) == len(draws)


def test_numbers_of_streams_stay():
  # Another number would give other results than before.
  beside_clients = [
      streams.DROPOUT, streams.STRAGGLES, streams.STRAGGLER_EPOCHS,
      streams.FIRST_COHORT, streams.SAMPLE, streams.DRAWS, streams.MODEL,
      streams.LOCAL, streams.CLUSTERING, streams.SIGNS, streams.REPEATED,
      streams.SHUFFLE, streams.NOISE, streams.ROUNDING, streams.LAYERS,
      streams.AUGMENTATION, streams.SELECTION, streams.NEXT_ROUND,
  ]  # fmt: skip
  assert beside_clients == [2**31 - i for i in range(1, 19)]
  of_run = [
      streams.INIT, streams.ROUNDS, streams.FINETUNE, streams.PORTRAIT,
      streams.JOINING,
  ]  # fmt: skip
  assert of_run == list(range(5))
  on_host = [
      streams.PARTITION, streams.SPLIT, streams.SELECT, streams.RELABEL,
      streams.HOLD_OUT, streams.GENERATE, streams.UNSEEN, streams.COHORT,
      streams.CORRUPT, streams.FIRST_EXAMPLES, streams.CORRUPT_IMAGES,
      streams.FEATURE_NOISE, streams.HALVES, streams.DRIFT,
  ]  # fmt: skip
  assert on_host == list(range(14))


def test_a_stream_of_the_host_is_one_of_numpy():
  want = np.random.default_rng([3, 5, 0]).random()
  assert streams.host_rng(3, 5).random() == streams.host_rng(3, 5, 0).random() == want
  assert streams.host_rng(3, 5, 7).random() == np.random.default_rng([3, 5, 7]).random()
