"""Names of all streams of random numbers, and the keys of optimizers.

On devices, a stream is folded into a key; no key is both folded into and split, because
`split(key, n)[i]` equals `fold_in(key, i)`. Beside client ids or epochs, streams count
down from 2**31. On the host, a stream is the second word of a NumPy seed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Folded into the key of the run.
INIT, ROUNDS, FINETUNE, PORTRAIT, JOINING = range(5)

# Folded into the key of a client in a round, beside epochs. LAYERS (Dropout and others)
# and AUGMENTATION also take the local step.
DROPOUT, STRAGGLES, STRAGGLER_EPOCHS, NOISE = (2**31 - i for i in (1, 2, 3, 13))
LAYERS, AUGMENTATION = 2**31 - 15, 2**31 - 16
OPTIMIZER, SENDING = 2**31 - 19, 2**31 - 20

# Folded into the key of a round, a start or a portrait, beside client ids.
FIRST_COHORT, SAMPLE, DRAWS, MODEL, LOCAL, CLUSTERING, SIGNS, REPEATED, SHUFFLE = (
  2**31 - i for i in range(4, 13)
)
ROUNDING = 2**31 - 14  # Of the number of clients of each device in a cohort.
NEXT_ROUND = 2**31 - 18  # The kind of the next round.
SERVER_NOISE, SPEEDS, ARRIVALS = (2**31 - i for i in (21, 22, 23))

# On the host.
(
  PARTITION, SPLIT, SELECT, RELABEL, HOLD_OUT, GENERATE, UNSEEN, COHORT, CORRUPT,
  FIRST_EXAMPLES, CORRUPT_IMAGES, FEATURE_NOISE, HALVES, DRIFT, BACKDOOR,
) = range(15)  # fmt: skip


def fold(key: jax.Array, stream: int) -> jax.Array:
  """The key of a stream for devices, from the key of e.g. the run or a round."""
  return jax.random.fold_in(key, stream)


@jax.jit
def folded(keys: jax.Array, numbers: Any) -> jax.Array:
  """Keys [...] of rounds, counted from 1, or a stream: compiled, for the host."""
  return jnp.vectorize(jax.random.fold_in)(*jnp.broadcast_arrays(keys, numbers))


def host_rng(seed: int, stream: int, number: int = 0) -> np.random.Generator:
  """The generator of a stream on the host; `number` is e.g. that of the round."""
  return np.random.default_rng([seed, stream, number])


def is_key(leaf: Any) -> bool:
  """True if part of a state is one random key or several, typed or as numbers."""
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return True
  size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
  return leaf.dtype == jnp.uint32 and leaf.shape[-1:] == size


def with_keys(state: Any, key: jax.Array) -> Any:
  """The first state of an optimizer, whose random keys depend on a client's `key`."""
  leaves, form = jax.tree.flatten(state)

  def folded_in(i: int, leaf: jax.Array) -> jax.Array:
    if not is_key(leaf):
      return leaf
    typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    keys = leaf if typed else jax.random.wrap_key_data(leaf)
    stream = jax.random.fold_in(fold(key, OPTIMIZER), i)
    # Clients times rounds may exceed one word.
    words = jax.random.bits(stream, (2, keys.size), jnp.uint32)
    new = keys.ravel()
    for word in words:
      new = jax.vmap(jax.random.fold_in)(new, word)
    new = new.reshape(keys.shape)
    return new if typed else jax.random.key_data(new)

  return jax.tree.unflatten(form, map(folded_in, range(len(leaves)), leaves))
