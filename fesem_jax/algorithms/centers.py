"""What the methods with K centers share: their start, and what they report."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import em, streams, sums, tree
from fesem_jax.base import Cohort, FederatedData, Params
from fesem_jax.errors import UserError
from fesem_jax.kmeans import kmeans
from fesem_jax.local import Trained, train_cohort
from fesem_jax.method import ClientModels, Clusters, RoundInfo
from fesem_jax.sampling import sample_clients
from fesem_jax.training import LocalTraining

# Where no client's model is kept, the first k-means holds those of so many at most.
MAX_INITIAL_CLIENTS = 4096

# Training before the first clustering is repeated so many times at most.
MAX_REPETITIONS = 10


def check_num_clusters(num_clusters: int, data: FederatedData) -> None:
  """Raises `UserError` if there are more clusters than clients."""
  if num_clusters > len(data.info.names):
    raise UserError(
      f'`num_clusters={num_clusters}` is more than the {len(data.info.names)} clients; '
      'lower it or raise `num_clients`.'
    )


def round_info(
  trained: Trained,
  num_clusters: int,
  value: jax.Array,
  before: jax.Array,
  after: jax.Array,
  data: FederatedData,
) -> RoundInfo:
  """Sums up a round of a clustered method.

  Args:
    trained: the cohort.
    num_clusters: K.
    value: [] float32 Eq. 6 at the end of the round.
    before: [M] int32 assignment of all clients before the round.
    after: [M] int32 assignment after it.
    data: training split; clients without examples are padding.
  """
  exists = data.sizes() > 0
  members = jax.nn.one_hot(after, num_clusters, dtype=jnp.int32)
  clusters = Clusters(
    assignment=after,
    sizes=(members * exists[:, None]).sum(axis=0),
    moved=((before != after) & exists).sum(),
    objective=value,
  )
  return trained.info(clusters)


def reseed_empty_centers(
  centers: Params,
  assignment: jax.Array,
  trained: Params,
  distance: jax.Array,
  cohort: Cohort,
  data: FederatedData,
) -> tuple[Params, jax.Array]:
  """Moves centers without clients to the clients farthest from their own centers.

  A client is left where it is if that could leave its own cluster empty. The centers
  that lose a client keep what it gave to their mean until the next round.

  Args:
    centers: [K, ...].
    assignment: [M] int32 of all clients.
    trained: [S, ...] models of the cohort.
    distance: [S] float32 of each to its center; negative for clients to leave alone.
    cohort: S clients.
    data: training split; clients without examples are padding.

  Returns:
    centers [K, ...], and the assignment [M], where those clients have joined them.
  """
  num_clusters = jax.tree.leaves(centers)[0].shape[0]
  exists = data.sizes() > 0
  sizes = jnp.bincount(jnp.where(exists, assignment, num_clusters), length=num_clusters)
  spare = sizes > (sizes == 0).sum()
  distance = jnp.where(spare[tree.rows_of(assignment, cohort)], distance, -1.0)
  _, farthest = jax.lax.top_k(distance, min(num_clusters, distance.shape[0]))
  # The first empty center takes the farthest client, the next one the next.
  turn = jnp.cumsum(sizes == 0) - 1
  row = farthest.at[turn].get(mode='clip')
  empty = (sizes == 0) & (distance[row] >= 0) & (turn < farthest.shape[0])
  joining = jnp.where(empty, jnp.asarray(cohort.ids)[row], assignment.shape[0])
  assignment = assignment.at[joining].set(jnp.arange(num_clusters), mode='drop')
  return tree.where(empty, tree.take(trained, row), centers), assignment


class Initial(NamedTuple):
  """Clusters to start from.

  Attributes:
    assignment: [M] int32.
    seeds: [K, ...] centers of the k-means, of the compared part of the models.
    centers: [K, ...] mean of each cluster's clients.
    client_params: [M, ...], or None where they were not to be kept.
  """

  assignment: jax.Array
  seeds: Params
  centers: Params
  client_params: Params


def train_and_cluster(
  local: LocalTraining,
  data: FederatedData,
  key: jax.Array,
  num_clusters: int,
  *,
  epochs: int,
  restarts: int,
  seeding: str,
  trim: float = 0.0,
  weighting: str = 'uniform',
  compared: Callable[[Params], Params] = lambda params: params,
  max_clients: int = 0,
  keep: bool = False,
  tolerance: float = 0.0,
) -> Initial:
  """All clients train from one random model, then k-means (Section 6.1.4).

  With more than `max_clients` clients, k-means sees a random sample; all clients
  then go to the nearest of its centers.

  Args:
    local: how clients train, but for the epochs; no client drops out.
    data: training split.
    key: decides the model, the order of examples and the seeds.
    num_clusters: K.
    epochs: local epochs.
    restarts: of k-means, as the rest; see `kmeans`.
    seeding: 'random' or 'plusplus'.
    trim: share of each cluster to leave out.
    weighting: of clients in `Initial.centers`; see `Trained.weights`.
    compared: the part of the parameters that k-means sees.
    max_clients: whose models k-means holds at once; 0 is all.
    keep: whether to return all clients' models.
    tolerance: the epochs are repeated until the mean training loss of one
      repetition is less than this below that of the one before, at most
      `MAX_REPETITIONS` times; 0, or a sample of clients, trains once.

  Raises:
    UserError: if there are more clusters than clients.
  """
  check_num_clusters(num_clusters, data)
  schedule = local.schedule._replace(epochs=epochs, steps=0)
  local = local._replace(schedule=schedule, dropout_rate=0.0)
  start = tree.expand(local.model.init(streams.fold(key, streams.MODEL)))
  train_key = streams.fold(key, streams.LOCAL)
  everyone = Cohort(jnp.arange(data.num_clients), everyone=True)
  limit = max(num_clusters, max_clients or data.num_clients)

  def train(cohort, **options):
    return train_cohort(local, ClientModels(start), data, cohort, train_key, **options)

  def train_until_settled(cohort):
    def falling(loop):
      number, before, trained = loop
      falls = trained.mean_loss() < before - tolerance
      return (number < MAX_REPETITIONS) & falls

    def repeat(loop):
      number, _, trained = loop
      key = jax.random.fold_in(streams.fold(train_key, streams.REPEATED), number)
      again = train_cohort(local, ClientModels(own=trained.params), data, cohort, key)
      again = again._replace(finite=again.finite & trained.finite)
      return number + 1, trained.mean_loss(), again

    first = train(cohort)
    if not tolerance:
      return first
    return jax.lax.while_loop(falling, repeat, (1, jnp.inf, first))[-1]

  def cluster(cohort, trained):
    found = kmeans(
      streams.fold(key, streams.CLUSTERING),
      compared(trained.params),
      trained.took_part(),
      num_clusters,
      jnp.asarray(data.client_ids).at[cohort.ids].get(mode='clip'),
      restarts=restarts,
      seeding=seeding,
      trim=trim,
      mesh=local.mesh,
    )
    # Where no model is finite, there are no centers to start from.
    sound = trained.took_part().any()
    nowhere = jax.tree.map(lambda c: jnp.where(sound, c, jnp.nan), found.centers)
    return found._replace(centers=nowhere)

  empty = tree.repeat(tree.unstack(start, 0), num_clusters)
  if data.num_clients <= limit:
    trained = train_until_settled(everyone)
    found = cluster(everyone, trained)
    weights = trained.weights(weighting)
    centers = em.m_step(trained.params, found.assignment, weights, empty, local.mesh)
    stack = trained.params if keep else None
    return Initial(found.assignment, found.centers, centers, stack)

  sample_key = streams.fold(key, streams.SAMPLE)
  sample = sample_clients(sample_key, data, limit, local.mesh)
  seeds = cluster(sample, train(sample)).centers

  def to_nearest(trained, starts, total):
    nearest, _ = em.e_step(compared(trained.params), seeds)
    weights = trained.weights(weighting)
    origins = tree.repeat(tree.unstack(starts.shared, 0), num_clusters)
    return nearest, sums.add_rows(total, trained.params, nearest, weights, origins)

  trained = train(everyone, fold=to_nearest, sums=sums.no_sums(empty), keep=keep)
  centers = sums.mean_of(trained.sums, empty)
  return Initial(trained.folded, seeds, centers, trained.params)
