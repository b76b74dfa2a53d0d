"""Clusters of clients by the losses that all models have on their examples (CLoVE)."""

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import first_at_random
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.silhouette import clusters_of_best_number
from fesem_jax.server.vector_clusters import clusters_of_vectors, match_clusters
from fesem_jax.training.client_losses import cohort_losses


def clusters_by_loss(
  local: LocalTraining,
  models: Params,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  choose_number: bool,
) -> jax.Array:
  """[S] int32 model of each client: clusters of loss vectors, matched to the models.

  Those that drop out, or have losses that are not finite, get the model of least loss.
  """
  losses = cohort_losses(local, models, data, cohort)
  arrived = local.arrived(key, data, cohort.ids)
  exists = (data.sizes(cohort.ids) > 0) & arrived & jnp.isfinite(losses).all(axis=1)
  # A number for each client and model: small enough to be whole on every device.
  losses, exists = sharding.on_all_devices((losses, exists), local.mesh)
  ids = jnp.asarray(data.client_ids).at[cohort.ids].get(mode='clip')
  clustering_key = prng_streams.fold(key, prng_streams.CLUSTERING)
  matched = cluster_and_match(clustering_key, losses, exists, ids, choose_number)
  return jnp.where(exists, matched, losses.argmin(axis=1)).astype(jnp.int32)


def cluster_and_match(
  key: jax.Array,
  losses: jax.Array,
  exists: jax.Array,
  client_ids: jax.Array,
  choose_number: bool = False,
) -> jax.Array:
  """K-means of losses [S, K], then the matching of clusters to models of least loss."""
  losses = jnp.where(exists[:, None], losses, 0.0)
  if choose_number:
    cluster = clusters_of_best_number(losses, exists, client_ids, losses.shape[1])
  else:
    cluster = clusters_of_vectors(key, losses, exists, client_ids, losses.shape[1])
  return match_clusters(cluster, exists, losses)


def clusters_at_random(
  num_models: int, data: FederatedData, cohort: Cohort, key: jax.Array
) -> jax.Array:
  """[S] int32: a random model for each client, and a client for each of K models."""

  def draw(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (), 0, num_models)

  shuffle_key = prng_streams.fold(key, prng_streams.SHUFFLE)
  models = jax.vmap(draw)(data.keys_of(shuffle_key, cohort.ids))
  keys = data.keys_of(prng_streams.fold(key, prng_streams.DRAWS), cohort.ids)
  first = first_at_random(keys, data.sizes(cohort.ids) > 0, num_models)
  return models.at[first].set(jnp.arange(len(first), dtype=jnp.int32))
