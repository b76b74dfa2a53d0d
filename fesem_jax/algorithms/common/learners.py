"""Parts of methods whose clients train all K centers and predict with a mixture."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import ClusterSums, mean_of
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Trained, mean_of_models


def deployed(state: Any, data: FederatedData) -> ClientModels:
  return ClientModels(state.centers, mixture=state.mixture)


def responsibilities(mixture: jax.Array, log_likelihoods: jax.Array) -> jax.Array:
  """[S, K, N_max] float32 q_s(k), of pi [S, K] and log likelihoods [S, K, N_max]."""
  return jax.nn.softmax(jnp.log(mixture)[..., None] + log_likelihoods, axis=1)


def exist(data: FederatedData, cohort: Cohort) -> jax.Array:
  """[S, N_max] bool, False behind each client's last example."""
  sizes = data.sizes(jnp.asarray(cohort.ids))
  return jnp.arange(data.max_examples)[None] < sizes[:, None]


def mixture_of(shares: jax.Array, data: FederatedData, cohort: Cohort) -> jax.Array:
  """[S, K] float32: pi_ik, the mean over client i's examples of q [S, K, N_max]."""
  exists = exist(data, cohort)
  total = jnp.where(exists[:, None], shares, 0.0).sum(axis=-1)
  return total / jnp.maximum(exists.sum(axis=-1), 1)[:, None]


def train(
  local: LocalTraining,
  centers: Params,
  shares: jax.Array,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
) -> tuple[Params, Trained]:
  """Means of centers [K, ...] that all train, on losses times shares [S, K, N]."""

  def train_center(center_args: Any) -> Trained:
    center, factors, key = center_args
    center = tree.expand(center)
    reduction, starts = mean_of_models(weighting, center), ClientModels(center)
    return train_cohort(local, starts, data, cohort, key, reduction, factors=factors)

  # The key too is of the loop: what is noted of it is known to be within one.
  keys = tree.repeat(key, shares.shape[1])
  trained = jax.lax.map(train_center, (centers, jnp.moveaxis(shares, 1, 0), keys))
  moves = jax.tree.map(lambda x: x[:, 0], trained.sums)
  return mean_of(ClusterSums(*moves), centers), sum_over_centers(trained)


def sum_over_centers(trained: Trained) -> Trained:
  """Clients' sums of losses and steps of [K, S] trainings, and whether all count."""
  return tree.unstack(trained._replace(sums=None), 0)._replace(
    loss=trained.loss.sum(axis=0),
    steps=trained.steps.sum(axis=0),
    finite=trained.finite.all(axis=0),
  )


def all_centers(
  local: LocalTraining, num_clusters: int, numbers: int = 0
) -> traffic.Traffic:
  """Traffic of clients that receive K centers, send as many models, and `numbers`."""
  size = traffic.bytes_of_model(local)
  down = num_clusters * size
  up = down + numbers * traffic.NUMBER
  sent = traffic.same_for_all(down, up, passes=num_clusters)
  return sent._replace(model=size, models_up=num_clusters, extras=None)
