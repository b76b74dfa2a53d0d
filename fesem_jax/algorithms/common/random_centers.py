"""First centers that are random models: K of them, or the best of several draws."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import sample_clients
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.client_losses import cohort_losses


def random_models(local: LocalTraining, key: jax.Array, num_models: int) -> Params:
  return jax.vmap(local.model.init)(jax.random.split(key, num_models))


# Numbers of models that train side by side on an accelerator: a part of its memory.
_MOST_NUMBERS = 2**24

# (Centers [K, ...], cohort, key) -> the centers after a round.
Round = Callable[[Params, Cohort, jax.Array], Params]


def best_centers(
  local: LocalTraining,
  data: FederatedData,
  key: jax.Array,
  num_clusters: int,
  one_round: Round,
  *,
  restarts: int,
  rounds: int,
  num_clients: int,
) -> Params:
  """The centers [K, ...] of the best draw, tried for some rounds on some clients."""
  sample_key = prng_streams.fold(key, prng_streams.SAMPLE)
  sample = sample_clients(sample_key, data, num_clients, local.mesh)

  def attempt(key: jax.Array) -> tuple[jax.Array, Params]:
    draw_key, train_key = jax.random.split(key)
    centers = random_models(local, draw_key, num_clusters)

    def again(i: jax.Array, centers: Params) -> Params:
      return one_round(centers, sample, jax.random.fold_in(train_key, i))

    centers = jax.lax.fori_loop(0, rounds, again, centers)
    best = cohort_losses(local, centers, data, sample).min(axis=1)  # Empty places: 0.
    return best.sum(), centers

  count = min(num_clients, data.num_clients)
  keys = jax.random.split(prng_streams.fold(key, prng_streams.DRAWS), restarts)
  return _best_of(attempt, keys, _batch_size(local, count, restarts))


def _batch_size(local: LocalTraining, count: int, restarts: int) -> int:
  """How many draws are tried side by side by `count` clients: a divisor of all."""
  most = local.max_concurrent(count)
  if local.mesh.devices.flat[0].platform != 'cpu':
    most = _MOST_NUMBERS // local.concurrent_parameters(count)
  fitting = range(1, max(1, min(most, restarts)) + 1)
  return max(n for n in fitting if restarts % n == 0)


def _best_of(
  attempt: Callable[[jax.Array], tuple[jax.Array, Params]],
  keys: jax.Array,
  batch_size: int,
) -> Params:
  """The centers [K, ...] of least loss of several attempts, of equal ones the last."""

  def several(keys):
    if batch_size == 1:
      return attempt(keys[0])
    losses, centers = jax.vmap(attempt)(keys)
    losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
    best = batch_size - 1 - jnp.argmin(losses[::-1])
    return losses[best], jax.tree.map(lambda x: x[best], centers)

  def better(best, keys):
    loss, centers = several(keys)
    candidate = jnp.where(jnp.isfinite(loss), loss, jnp.inf), centers

    def choose(a, b):
      return jnp.where(candidate[0] <= best[0], a, b)

    return jax.tree.map(choose, candidate, best), None

  like = jax.eval_shape(attempt, keys[0])[1]
  none = jnp.inf, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
  (_, centers), _ = jax.lax.scan(better, none, keys.reshape(-1, batch_size))
  return centers
