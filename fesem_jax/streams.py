"""Every stream of random numbers by its name.

On devices, a stream is a number folded into a key. A key is either folded into or
split, never both: `split(key, n)[i]` equals `fold_in(key, i)`. Streams that meet
client ids or epochs in one key count down from 2**31, which those never reach. On the
host, a stream is the second word of a NumPy seed.
"""

import jax
import numpy as np

# Folded into the key of the run.
INIT, ROUNDS, FINETUNE, PORTRAIT = range(4)

# Folded into the key of a client in a round, beside epochs.
DROPOUT, STRAGGLES, STRAGGLER_EPOCHS = (2**31 - i for i in range(1, 4))

# Folded into the key of a round, a start or a portrait, beside client ids.
FIRST_COHORT, SAMPLE, DRAWS, MODEL, LOCAL, CLUSTERING, SIGNS, REPEATED = (
  2**31 - i for i in range(4, 12)
)

# Of the host: loading data, and drawing the clients of a round.
PARTITION, SPLIT, SELECT, RELABEL, HOLD_OUT, GENERATE, UNSEEN, COHORT = range(8)


def fold(key: jax.Array, stream: int) -> jax.Array:
  """The key of a stream."""
  return jax.random.fold_in(key, stream)


def host_rng(seed: int, stream: int, number: int = 0) -> np.random.Generator:
  """The random state of a stream on the host.

  Args:
    seed: of the run.
    stream: one of those of the host.
    number: tells the uses of one stream apart, e.g. the round.
  """
  return np.random.default_rng([seed, stream, number])
