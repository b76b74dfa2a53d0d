"""What is drawn from which key, spelled out: the one place that knows the streams."""

import jax
import numpy as np

from fesem_jax.algorithms.fed_dane import _FIRST_COHORT
from fesem_jax.local import DROPOUT, STRAGGLER_EPOCHS, STRAGGLES

# Robust's start trains once, for `init_epochs`.
ONCE: dict[str, float] = {}


def client_key(key, data, i):
  """The key of client number `i` in a round."""
  return jax.random.fold_in(key, int(data.client_ids[i]))


def drops_out(key, data, i, rate):
  own = jax.random.fold_in(client_key(key, data, i), DROPOUT)
  return bool(jax.random.bernoulli(own, rate))


def epochs_of(key, data, i, fraction, most):
  """FedProx: the epochs of client `i`, a straggler with probability `fraction`."""
  own = client_key(key, data, i)
  straggles = jax.random.bernoulli(jax.random.fold_in(own, STRAGGLES), fraction)
  some = jax.random.randint(jax.random.fold_in(own, STRAGGLER_EPOCHS), (), 1, most + 1)
  return int(some) if straggles else most


def sample(key, data, count):
  """`count` clients in the order of one uniform number for each."""
  draw = [float(jax.random.uniform(client_key(key, data, i)))
          for i in range(data.num_clients)]  # fmt: skip
  return np.argsort(draw)[:count].tolist()


def first_cohort(key, data, count):
  """FedDANE's first cohort."""
  return sample(jax.random.fold_in(key, _FIRST_COHORT), data, count)


def start_keys(key):
  """Of FeSEM's and Robust's start: for the model and for training."""
  model_key, train_key, _ = jax.random.split(key, 3)
  return model_key, train_key


def hypo_keys(key, draws):
  """Of HypoCluster's start: for the sample, and (models, training) of each draw."""
  return key, [tuple(jax.random.split(k)) for k in jax.random.split(key, draws)]
