"""Streams of random numbers."""

import jax
import numpy as np

from fesem_jax.core import prng_streams as streams

# Another number would give other results than before.
BESIDE_CLIENTS = {name: 2**31 - i for i, name in enumerate([
  'DROPOUT', 'STRAGGLES', 'STRAGGLER_EPOCHS', 'FIRST_COHORT', 'SAMPLE', 'DRAWS',
  'MODEL', 'LOCAL', 'CLUSTERING', 'SIGNS', 'REPEATED', 'SHUFFLE', 'NOISE', 'ROUNDING',
  'LAYERS', 'AUGMENTATION', '', 'NEXT_ROUND', 'OPTIMIZER', 'SENDING',
  'SERVER_NOISE', 'SPEEDS', 'ARRIVALS',
], 1) if name}  # fmt: skip
OF_RUN = {
  name: i
  for i, name in enumerate(['INIT', 'ROUNDS', 'FINETUNE', 'PORTRAIT', 'JOINING'])
}
ON_HOST = {name: i for i, name in enumerate([
  'PARTITION', 'SPLIT', 'SELECT', 'RELABEL', 'HOLD_OUT', 'GENERATE', 'UNSEEN',
  'COHORT', 'CORRUPT', 'FIRST_EXAMPLES', 'CORRUPT_IMAGES', 'FEATURE_NOISE', 'HALVES',
  'DRIFT', 'BACKDOOR',
])}  # fmt: skip


def test_streams_do_not_coincide():
  key = jax.random.key(5)

  def data(k):
    return tuple(np.asarray(jax.random.key_data(k)).tolist())

  of_clients = {data(jax.random.fold_in(key, i)) for i in range(100)}
  others = {data(streams.fold(key, number)) for number in BESIDE_CLIENTS.values()}
  assert len(others) == len(BESIDE_CLIENTS)
  assert not of_clients & others

  def first(*words):
    return streams.host_rng(3, *words).random()

  draws = [first(number) for name, number in ON_HOST.items() if name != 'COHORT']
  draws += [first(streams.COHORT, r) for r in range(1, 50)]
  assert len(set(draws)) == len(draws)


def test_numbers_of_streams_stay():
  numbers = {
    name: value for name, value in vars(streams).items()
    if name.isupper() and isinstance(value, int)
  }  # fmt: skip
  assert numbers == BESIDE_CLIENTS | OF_RUN | ON_HOST
