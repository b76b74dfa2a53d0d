"""Clusters of clients that trained from a common start (Section 6.1.4)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams, sums, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import sample_clients
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.comparison import ModelComparison, by_weights
from fesem_jax.server.kmeans import kmeans
from fesem_jax.training import privacy
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction, Trained, sent_at_last

# Maximum number of clients in the first k-means if no client's model is kept.
MAX_INITIAL_CLIENTS = 4096

# Maximum number of repetitions of the training before the first clustering.
MAX_REPETITIONS = 10

_ALL = by_weights()


class FirstClusters(NamedTuple):
  assignment: jax.Array  # [S] int32
  seeds: Params  # [K, ...] centers of the k-means, of the compared part of the models
  centers: Params  # [K, ...] mean of each cluster's clients
  trained: Trained  # the clients after that training; its `params` are None unless kept
  # [S, ...] their models as they are averaged, see `ModelComparison`; None unless kept
  # on the devices.
  models: Params
  # [S, ...] what k-means compared: parts of the models, with their units in one order;
  # None unless kept, or where k-means saw a sample.
  compared: Params


class Clustering(NamedTuple):
  """How clients are clustered once they have trained.

  Attributes:
    restarts: restarts of k-means; see `kmeans`.
    trim: share of each cluster to leave out; see `kmeans`.
    weighting: weights of clients in means and in Eq. 6.
    comparison: comparison of models, and the models to average.
    max_clients: maximum number of clients in k-means; 0 is all.
    keep: whether to return all clients' models.
    into: an `Offloaded` [S, ...] for the models where k-means sees a sample, or None.
    tolerance: training repeats, at most `MAX_REPETITIONS` times, until its mean loss
      falls by less than this; 0 trains once.
  """

  restarts: int = 20
  trim: float = 0.0
  weighting: str = 'uniform'
  comparison: ModelComparison = _ALL
  max_clients: int = 0
  keep: bool = False
  into: Any = None
  tolerance: float = 0.0


def initial_training(local: LocalTraining, epochs: int) -> LocalTraining:
  """Settings of training before the first round: `epochs`, without dropouts."""
  schedule = local.schedule._replace(epochs=epochs, steps=0)
  return local._replace(schedule=schedule, dropout_rate=0.0)


def random_starts(
  local: LocalTraining, data: FederatedData, key: jax.Array, init_models: str
) -> ClientModels:
  """Random models before the first training: one for all, or one each if 'random'."""
  key = prng_streams.fold(key, prng_streams.MODEL)
  if init_models != 'random':
    return ClientModels(tree.expand(local.model.init(key)))
  keys = data.keys_of(key, jnp.arange(data.num_clients))
  return ClientModels(personal=jax.vmap(local.model.init)(keys))


def train_and_cluster(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  num_clusters: int,
  clustering: Clustering,
  train_key: jax.Array | None = None,
) -> FirstClusters:
  """Clients train from a common start, then k-means, of a sample where M is large."""
  if train_key is None:
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
  limit = max(num_clusters, clustering.max_clients or data.num_clients)

  def train(cohort, reduction=Reduction()):
    if starts.shared is None and reduction.sent != 'nothing':
      reduction = reduction._replace(sent='personal')
    # Of random starts, the first center would be about a client's model.
    reduction = reduction._replace(noised=starts.shared is not None)
    return train_cohort(local, starts.of(cohort), data, cohort, train_key, reduction)

  def common_origins(trained):
    first = starts.shared
    if first is None:
      first = jax.tree.map(lambda x: x[:1], trained.params)
    return tree.repeat(tree.unstack(first, 0), num_clusters)

  if cohort.ids.shape[0] <= limit:
    if clustering.tolerance:
      first = train(cohort, Reduction(sent='nothing'))
      trained = _until_settled(
        local, first, starts, data, cohort, train_key, clustering.tolerance
      )
    else:
      trained = train(cohort)
    seeds, compared = _clustered(
      local, trained, data, cohort, key, num_clusters, clustering
    )
    # Models are averaged as they are matched to the center that they are nearest to.
    prepared = clustering.comparison.prepare(seeds)
    assignment, _, models = clustering.comparison.nearest(
      trained.params, prepared, local.mesh
    )
    origins = common_origins(trained)
    centers = privacy.means(
      local, key, trained, models, assignment, clustering.weighting, origins
    )
    if not clustering.keep:
      trained, models, compared = trained._replace(params=None), None, None
    return FirstClusters(assignment, seeds, centers, trained, models, compared)

  sample_key = prng_streams.fold(key, prng_streams.SAMPLE)
  sample = sample_clients(sample_key, data, limit, local.mesh, cohort)
  sampled = train(sample)
  seeds, _ = _clustered(local, sampled, data, sample, key, num_clusters, clustering)
  origins = common_origins(sampled)

  def assign_and_sum(trained, _, total, shared):
    prepared, origins = shared
    cluster, _, models = clustering.comparison.nearest(trained.params, prepared)
    weights = trained.weights(clustering.weighting)
    return cluster, sums.add_rows(total, models, cluster, weights, origins)

  no_sums, prepared = sums.no_sums(origins), clustering.comparison.prepare(seeds)
  shared = prepared, origins
  trained = train(
    cohort,
    Reduction(
      assign_and_sum, no_sums, shared, keep=clustering.keep, into=clustering.into
    ),
  )
  centers, models = sums.mean_of(trained.sums, origins), None
  if clustering.keep and clustering.into is None:
    models = clustering.comparison.nearest(trained.params, prepared, local.mesh)[2]
  return FirstClusters(trained.folded, seeds, centers, trained, models, None)


def _until_settled(
  local: LocalTraining,
  first: Trained,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  tolerance: float,
) -> Trained:
  """Repeats the training of all clients; see `Clustering.tolerance`."""

  def falling(loop):
    number, before, trained = loop
    falls = trained.mean_loss() < before - variable(tolerance)
    return (number < MAX_REPETITIONS) & falls

  def repeat(loop):
    number, _, trained = loop
    round_key = jax.random.fold_in(
      prng_streams.fold(key, prng_streams.REPEATED), number
    )
    starts = ClientModels(personal=trained.params)
    repeated = train_cohort(local, starts, data, cohort, round_key)
    repeated = repeated._replace(finite=repeated.finite & trained.finite)
    return number + 1, trained.mean_loss(), repeated

  last = jax.lax.while_loop(falling, repeat, (1, jnp.inf, first))[-1]
  # Clients send their models once, after the last repetition.
  if starts.shared is None:
    return last
  return sent_at_last(local, starts, last, data, cohort, key)


def _clustered(
  local: LocalTraining,
  trained: Trained,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  num_clusters: int,
  clustering: Clustering,
) -> tuple[Params, Params]:
  """The centers [K, ...] of k-means over trained clients, and what it compared."""
  exists = trained.took_part()
  compared = clustering.comparison.part(
    clustering.comparison.alike(trained.params, exists, local.mesh)
  )
  clusters = kmeans(
    prng_streams.fold(key, prng_streams.CLUSTERING),
    compared,
    trained.weights(clustering.weighting),
    num_clusters,
    jnp.asarray(data.client_ids).at[cohort.ids].get(mode='clip'),
    restarts=clustering.restarts,
    trim=clustering.trim,
    mesh=local.mesh,
  )
  # Where no model is finite, there are no centers to start from.
  any_exists = exists.any()
  centers = jax.tree.map(lambda c: jnp.where(any_exists, c, jnp.nan), clusters.centers)
  return centers, compared
