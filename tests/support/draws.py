"""What is drawn from which key, spelled out: the one place that knows the streams."""

import jax
import numpy as np

from fesem_jax.core import prng_streams

# Robust's start trains once, for `init_epochs`.
ONCE = {'init_tolerance': 0.0}


def client_key(key, data, i):
  """The key of client number `i` in a round."""
  return jax.random.fold_in(key, int(data.client_ids[i]))


def drops_out(key, data, i, rate):
  step_key = jax.random.fold_in(client_key(key, data, i), prng_streams.DROPOUT)
  return bool(jax.random.bernoulli(step_key, rate))


def dropped(key, data, rate):
  """[M] bool: the clients that drop out of a round."""
  return np.array([drops_out(key, data, i, rate) for i in range(data.num_clients)])


def epochs_of(key, data, i, fraction, most):
  """FedProx: the epochs of client `i`, a straggler with probability `fraction`."""
  step_key = client_key(key, data, i)
  straggles = jax.random.bernoulli(
    jax.random.fold_in(step_key, prng_streams.STRAGGLES), fraction
  )
  epochs_key = jax.random.fold_in(step_key, prng_streams.STRAGGLER_EPOCHS)
  some = jax.random.randint(epochs_key, (), 1, most + 1)
  return int(some) if straggles else most


def sample(key, data, count):
  """`count` clients in the order of one uniform number for each with examples."""
  exist = np.flatnonzero(np.diff(np.asarray(data.offsets)))
  draw = [float(jax.random.uniform(client_key(key, data, i))) for i in exist]
  return exist[np.argsort(draw)[:count]].tolist()


def first_cohort(key, data, count):
  """FedDANE's first cohort."""
  return sample(jax.random.fold_in(key, prng_streams.FIRST_COHORT), data, count)


def start_keys(key):
  """Of FeSEM's and Robust's start: for the model and for training."""
  return tuple(
    jax.random.fold_in(key, s) for s in (prng_streams.MODEL, prng_streams.LOCAL)
  )


def hypo_keys(key, draws):
  """Of HypoCluster's start: for the sample, and (models, training) of each draw."""
  sample_key = jax.random.fold_in(key, prng_streams.SAMPLE)
  each = jax.random.split(jax.random.fold_in(key, prng_streams.DRAWS), draws)
  return sample_key, [tuple(jax.random.split(k)) for k in each]
