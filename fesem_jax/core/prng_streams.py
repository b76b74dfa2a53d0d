"""Names of all streams of random numbers, and the keys of optimizers.

On devices, a stream is a number that is folded into a key. No key is both folded into
and split, because `split(key, n)[i]` equals `fold_in(key, i)`. Where client ids or
epochs are folded into the same key, streams count down from 2**31, a number that ids
and epochs never reach. On the host, a stream is the second word of a NumPy seed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Folded into the key of the run.
INIT, ROUNDS, FINETUNE, PORTRAIT, JOINING = range(5)

# Folded into the key of a client in a round, beside epochs.
DROPOUT, STRAGGLES, STRAGGLER_EPOCHS, NOISE = (2**31 - i for i in (1, 2, 3, 13))

# Likewise, and then the local step: draws of layers such as Dropout, and of
# augmentation.
LAYERS, AUGMENTATION = (2**31 - i for i in (15, 16))

# Likewise: the centers for which a client is drawn.
SELECTION = 2**31 - 17

# Likewise: random keys in the state of the local optimizer.
OPTIMIZER = 2**31 - 19

# Folded into the key of a round or a start, beside client ids: the kind of the next
# round.
NEXT_ROUND = 2**31 - 18

# Folded into the key of a client in a round, beside epochs: what it draws to send.
SENDING = 2**31 - 20

# Folded into the key of a round or a start, beside client ids: noise of the server.
SERVER_NOISE = 2**31 - 21

# Folded into the key of a start, beside client ids: the speeds of clients' devices.
SPEEDS = 2**31 - 22

# Folded into the key of a round, beside client ids: who starts after others finished.
ARRIVALS = 2**31 - 23

# Folded into the key of a round, a start or a portrait, beside client ids.
FIRST_COHORT, SAMPLE, DRAWS, MODEL, LOCAL, CLUSTERING, SIGNS, REPEATED, SHUFFLE = (
  2**31 - i for i in range(4, 13)
)
ROUNDING = 2**31 - 14  # Of the number of clients of each device in a cohort.

# On the host: loading data, drawing the clients of a round, bad clients and the
# examples of a new client, and changes of a partition to images, features and groups.
(
  PARTITION, SPLIT, SELECT, RELABEL, HOLD_OUT, GENERATE, UNSEEN, COHORT, CORRUPT,
  FIRST_EXAMPLES, CORRUPT_IMAGES, FEATURE_NOISE, HALVES, DRIFT, BACKDOOR,
) = range(15)  # fmt: skip


def fold(key: jax.Array, stream: int) -> jax.Array:
  """The key of a stream for devices; `key` is e.g. that of the run or of a round."""
  return jax.random.fold_in(key, stream)


@jax.jit
def folded(key: jax.Array, number: int) -> jax.Array:
  """The key of a round, counted from 1, or of a stream: compiled, for the host."""
  return jax.random.fold_in(key, number)


def host_rng(seed: int, stream: int, number: int = 0) -> np.random.Generator:
  """The random number generator of a stream for the host, from the seed of a run.

  `number` distinguishes several uses of one stream, e.g. the number of the round.
  """
  return np.random.default_rng([seed, stream, number])


def is_key(leaf: Any) -> bool:
  """Tells whether part of a state is one random key or several, typed or as numbers."""
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return True
  size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
  return leaf.dtype == jnp.uint32 and leaf.shape[-1:] == size


def with_keys(state: Any, key: jax.Array) -> Any:
  """The first state of an optimizer, with random keys that a key is folded into.

  Optax's state holds the key that the optimizer was made with, the same for all clients
  and rounds. `key` is that of the client in this round, or of a server's start; of
  several keys in one array, as of stacked states, each becomes another one.
  """
  leaves, form = jax.tree.flatten(state)

  def own(i: int, leaf: jax.Array) -> jax.Array:
    if not is_key(leaf):
      return leaf
    typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    keys = leaf if typed else jax.random.wrap_key_data(leaf)
    stream = fold(key, OPTIMIZER)
    of_leaf = jax.random.fold_in(stream, i)
    # Both words: clients times rounds may exceed what one word tells apart.
    words = jax.random.bits(of_leaf, (2, keys.size), jnp.uint32)
    new = keys.ravel()
    for word in words:
      new = jax.vmap(jax.random.fold_in)(new, word)
    new = new.reshape(keys.shape)
    return new if typed else jax.random.key_data(new)

  return jax.tree.unflatten(form, map(own, range(len(leaves)), leaves))
