"""Stragglers: clients that run only some of a round's local epochs."""

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import coin
from fesem_jax.core.types import Cohort


def epochs(
  local: LocalTraining,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  straggler_fraction: float,
) -> jax.Array | None:
  """[S] int32 local epochs, of stragglers a random number from 1; None: all epochs."""
  if straggler_fraction == 0:
    return None
  most = local.schedule.epochs

  def draw(key: jax.Array) -> jax.Array:
    key = prng_streams.fold(key, prng_streams.STRAGGLER_EPOCHS)
    return jax.random.randint(key, (), 1, most + 1)

  random_epochs = jax.vmap(draw)(data.keys_of(key, cohort.ids))
  straggles = coin(key, data, cohort.ids, straggler_fraction, prng_streams.STRAGGLES)
  return jnp.where(straggles, random_epochs, most)
