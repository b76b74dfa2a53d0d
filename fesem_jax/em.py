"""The E-step, the M-step and the k-means that starts FeSEM (Section 4.3)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax import sharding, streams, tree
from fesem_jax.base import Clusters, Cohort, FederatedData, Params, RoundInfo
from fesem_jax.errors import UserError
from fesem_jax.local import LocalTraining, Trained, train_cohort

# Where no client's model is kept, the first k-means holds those of so many at most.
MAX_INITIAL_CLIENTS = 4096

# Training before the first clustering is repeated so many times at most.
MAX_REPETITIONS = 10

# Its restarts run on inner products between so many of them, at least: 256^2
# products of models cost less than a local epoch, 4096^2 would cost far more.
GRAM_CLIENTS = 256
GRAM_CLIENTS_PER_CLUSTER = 32
MAX_ITERATIONS = 100

_HIGHEST = jax.lax.Precision.HIGHEST


def e_step(
  stack: Params, centers: Params, mesh: Mesh | None = None
) -> tuple[jax.Array, jax.Array]:
  """Assigns each client to its nearest center (Eq. 8).

  Args:
    stack: [S, ...] client models.
    centers: [K, ...].
    mesh: devices that the stack is split over; None if it is whole here.

  Returns:
    [S] int32 in 0..K-1, ties go to the smallest, and the squared distances [S].
  """
  distances = _all_distances(stack, centers, mesh)
  return distances.argmin(axis=-1).astype(jnp.int32), distances.min(axis=-1)


def _all_distances(stack: Params, centers: Params, mesh: Mesh | None) -> jax.Array:
  on_device = lambda stack, centers: (tree.squared_distances(stack, centers), None)
  return sharding.per_device(on_device, mesh, 1)(stack, centers)[0]


def m_step(
  stack: Params,
  assignment: jax.Array,
  weights: jax.Array,
  centers: Params,
  mesh: Mesh | None = None,
) -> Params:
  """Moves each center to the mean of its clients (Eq. 9).

  Args:
    stack: [S, ...] client models.
    assignment: [S] int32.
    weights: [S] float32; all 1 in the paper.
    centers: [K, ...] old centers; one without clients stays where it is.
    mesh: see `e_step`.

  Returns:
    [K, ...] new centers.
  """
  return tree.weighted_mean(stack, assignment, weights, centers, mesh)


def objective(
  stack: Params,
  centers: Params,
  assignment: jax.Array,
  counts: jax.Array,
  mesh: Mesh | None = None,
) -> jax.Array:
  """Eq. 6: mean squared distance of clients to their centers, [] float32.

  Args:
    stack: [S, ...] client models.
    centers: [K, ...].
    assignment: [S] int32.
    counts: [S] bool, clients that count.
    mesh: see `e_step`.
  """
  distances = _all_distances(stack, centers, mesh)
  own = jnp.take_along_axis(distances, assignment[:, None], axis=1)[:, 0]
  return tree.total(jnp.where(counts, own, 0.0)) / jnp.maximum(counts.sum(), 1)


def reseed_empty(
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
    distance: [S] float32 of each to its center; negative for who is not to move.
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


class Sums(NamedTuple):
  """What the M-step and Eq. 6 need of the clients seen so far, about the old centers.

  Attributes:
    weighted: by the weights of the M-step.
    plain: every client weighs 1; None where the M-step's weights are 1 as well.
    squared: [K] squared distances of clients to the old centers.
  """

  weighted: tree.ClusterSums
  plain: tree.ClusterSums | None
  squared: jax.Array

  @classmethod
  def zeros(cls, centers: Params, weighting: str) -> 'Sums':
    """Sums of no clients, for centers [K, ...]."""
    none = tree.no_sums(centers)
    plain = None if weighting == 'uniform' else tree.no_sums(centers)
    return cls(none, plain, jnp.zeros(none.weight.shape))

  def add(
    self,
    trained: Trained,
    cluster: jax.Array,
    distance: jax.Array,
    weighting: str,
    centers: Params,
  ) -> 'Sums':
    """Adds a chunk of clients.

    Args:
      trained: the chunk's C clients.
      cluster: [C] int32 cluster of each.
      distance: [C] float32 squared distance to the old center of that cluster.
      weighting: see `Trained.weights`.
      centers: [K, ...] old centers.
    """
    ones = trained.weights('uniform')
    weights = trained.weights(weighting)
    plain = self.plain
    if plain is not None:
      plain = tree.add_rows(plain, trained.params, cluster, ones, centers)
    return Sums(
      tree.add_rows(self.weighted, trained.params, cluster, weights, centers),
      plain,
      self.squared.at[cluster].add(ones * distance),
    )

  def objective(self, old: Params, new: Params) -> jax.Array:
    """Eq. 6 of all clients added, [] float32, without looking at them again.

    With D the sum of squared distances to the old center c, and the center
    moving to c': sum |w - c'|^2 = D - 2 <c' - c, sum (w - c)> + n |c' - c|^2.
    Where centers move many times farther than clients differ, digits cancel: 0.2 %
    are lost at a move of 40 times the spread, 10 to 30 % at 200 times. The centers
    themselves are not affected.

    Args:
      old: [K, ...] centers that distances and sums were taken about.
      new: [K, ...] centers after the M-step.
    """
    rows = self.weighted if self.plain is None else self.plain

    def change(sum_of: jax.Array, c: jax.Array, moved: jax.Array) -> jax.Array:
      count = rows.weight.reshape((-1,) + (1,) * (c.ndim - 1))
      shift = moved - c
      return (shift * (count * shift - 2 * sum_of)).sum()

    changes = jax.tree.leaves(jax.tree.map(change, rows.params, old, new))
    value = self.squared.sum() + sum(changes)
    return jnp.maximum(value, 0.0) / jnp.maximum(rows.weight.sum(), 1.0)


def check_num_clusters(num_clusters: int, data: FederatedData) -> None:
  """Raises `UserError` if there are more clusters than clients."""
  if num_clusters > len(data.info.names):
    raise UserError(
      f'--num_clusters={num_clusters} is more than the {len(data.info.names)} '
      'clients; lower it or raise --num_clients.'
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


class KMeans(NamedTuple):
  """A clustering of client models.

  Attributes:
    assignment: [M] int32.
    centers: [K, ...].
    objective: [] float32 Eq. 6.
  """

  assignment: jax.Array
  centers: Params
  objective: jax.Array


def sample_clients(
  key: jax.Array, data: FederatedData, count: int, mesh: Mesh
) -> Cohort:
  """A random cohort, drawn by client id, so that clients' order does not matter.

  Args:
    key: decides who is drawn.
    data: training split; clients without examples come last.
    count: clients to draw; empty places fill up to a multiple of the device count.
    mesh: the devices.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(data.client_ids))
  ids = _random_order(keys, data.sizes() > 0)[:count]
  padding = jnp.full(-ids.shape[0] % mesh.size, data.num_clients, jnp.int32)
  return Cohort(jnp.concatenate([ids, padding]), everyone=False)


def _random_order(keys: jax.Array, exists: jax.Array) -> jax.Array:
  """[S] int32 positions in a random order; those that do not exist come last.

  Args:
    keys: [S] one for each client.
    exists: [S] bool.
  """
  draw = jnp.where(exists, jax.vmap(jax.random.uniform)(keys), 2.0)
  return jnp.argsort(draw).astype(jnp.int32)


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
    first = jnp.zeros(cohort.ids.shape, jnp.int32)
    return train_cohort(local, start, first, data, cohort, train_key, **options)

  def train_until_settled(cohort):
    def falling(loop):
      number, before, trained = loop
      falls = trained.mean_loss() < before - tolerance
      return (number < MAX_REPETITIONS) & falls

    def repeat(loop):
      number, _, trained = loop
      key = jax.random.fold_in(streams.fold(train_key, streams.REPEATED), number)
      again = train_cohort(local, trained.params, None, data, cohort, key)
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
    centers = m_step(trained.params, found.assignment, weights, empty, local.mesh)
    stack = trained.params if keep else None
    return Initial(found.assignment, found.centers, centers, stack)

  sample_key = streams.fold(key, streams.SAMPLE)
  sample = sample_clients(sample_key, data, limit, local.mesh)
  seeds = cluster(sample, train(sample)).centers

  def to_nearest(sums, trained, which, starts):
    nearest, _ = e_step(compared(trained.params), seeds)
    weights = trained.weights(weighting)
    origins = tree.repeat(tree.unstack(starts, 0), num_clusters)
    return tree.add_rows(sums, trained.params, nearest, weights, origins), nearest

  trained = train(everyone, fold=to_nearest, sums=tree.no_sums(empty), keep=keep)
  centers = tree.mean_of(trained.sums, empty)
  return Initial(trained.rows, seeds, centers, trained.params)


def clients_seen(num_clients: int, num_clusters: int) -> int:
  """How many clients the restarts of `kmeans` compare."""
  return min(num_clients, max(GRAM_CLIENTS, GRAM_CLIENTS_PER_CLUSTER * num_clusters))


def kmeans(
  key: jax.Array,
  stack: Params,
  exists: jax.Array,
  num_clusters: int,
  client_ids: jax.Array,
  *,
  restarts: int = 20,
  seeding: str = 'random',
  trim: float = 0.0,
  mesh: Mesh | None = None,
) -> KMeans:
  """K-means over client models; the best of several restarts (Section 6.1.4).

  Every center Lloyd's algorithm visits is a weighted sum of clients, so all
  restarts run at once on the inner products between clients: one pass over the
  stack however many restarts. With many clients the restarts see a random sample
  of them. The winner is then iterated on the whole stack until no client moves.

  Args:
    key: decides the seeds.
    stack: [M, ...] client models.
    exists: [M] bool, False for clients to leave out.
    num_clusters: K.
    client_ids: [M] int32, folded into the key so that the order of clients
      does not matter.
    restarts: runs from different seeds; least Eq. 6 wins.
    seeding: 'random' takes K distinct clients, as the paper does; 'plusplus'
      draws them in proportion to squared distance (k-means++).
    trim: share of each cluster, the clients farthest from its center, that its
      mean and Eq. 6 leave out (trimmed k-means, Ghosh et al. 2019).
    mesh: devices that the stack is split over; None if it is whole here.

  Returns:
    `KMeans`; clients left out are assigned to the nearest center too.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(client_ids))
  sampled, valid = stack, exists
  sample_size = clients_seen(exists.shape[0], num_clusters)
  if exists.shape[0] > sample_size:
    sample = _random_order(keys, exists)[:sample_size]
    sampled, valid, keys = tree.take(stack, sample), exists[sample], keys[sample]
  gram = centered_gram(sampled, valid)

  def restart(number):
    own = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
    return _lloyd(own, gram, valid, num_clusters, seeding, trim)

  coefficients, values = jax.vmap(restart)(jnp.arange(restarts))
  best = coefficients[values.argmin()]
  combine = lambda x: jnp.einsum('ks,s...->k...', best, x, precision=_HIGHEST)
  centers = jax.tree.map(combine, tree.where(valid, sampled, tree.zeros_like(sampled)))

  def refine(loop):
    step, _, assignment, distance, centers = loop
    kept = keep_nearest(distance, assignment, exists, num_clusters, trim)
    centers = m_step(stack, assignment, kept.astype(jnp.float32), centers, mesh)
    return step + 1, assignment, *e_step(stack, centers, mesh), centers

  def moving(loop):
    step, before, now, _, _ = loop
    return (step < MAX_ITERATIONS) & ((before != now) & exists).any()

  first, distance = e_step(stack, centers, mesh)
  _, _, assignment, distance, centers = jax.lax.while_loop(
    moving, refine, refine((0, first, first, distance, centers))
  )
  kept = keep_nearest(distance, assignment, exists, num_clusters, trim)
  value = tree.total(jnp.where(kept, distance, 0.0)) / kept.sum()
  return KMeans(assignment, centers, value)


def keep_nearest(
  distance: jax.Array,
  assignment: jax.Array,
  exists: jax.Array,
  num_clusters: int,
  trim: float,
) -> jax.Array:
  """[S] bool: clients left when each cluster drops its farthest ones.

  Args:
    distance: [S] float32 of each client to its center.
    assignment: [S] int32.
    exists: [S] bool, False for clients that never count.
    num_clusters: K.
    trim: share in [0, 1); a cluster of n clients drops floor(trim * n).
  """
  if trim == 0:
    return exists
  cluster = jnp.where(exists, assignment, num_clusters)
  order = jnp.lexsort((-distance, cluster))  # By cluster, the farthest first.
  sizes = jnp.bincount(cluster, length=num_clusters + 1)
  starts = jnp.cumsum(sizes) - sizes
  rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
  rank = rank - starts[cluster]
  # The epsilon keeps floor(0.1 * 30) at 3 in float32.
  dropped = jnp.floor(trim * sizes[cluster] + 1e-4)
  return exists & (rank >= dropped)


def centered_gram(stack: Params, valid: jax.Array) -> jax.Array:
  """[S, S] inner products of clients about their mean; 0 where not valid.

  One client is taken off before multiplying, as clients differ far less than they
  measure; the mean is taken off the products, which are small.
  """
  one = valid.argmax()

  shift = lambda x: x - jax.lax.dynamic_slice_in_dim(x, one, 1)
  shifted = tree.where(valid, jax.tree.map(shift, stack), tree.zeros_like(stack))
  gram = tree.inner_products(shifted)
  weights = valid / jnp.maximum(valid.sum(), 1)
  mean = gram @ weights
  gram = gram - mean[:, None] - mean[None] + weights @ mean
  return jnp.where(valid[:, None] & valid[None], gram, 0.0)


def _seed(
  keys: jax.Array, gram: jax.Array, valid: jax.Array, num_clusters: int, seeding: str
) -> jax.Array:
  """[K] int32: K distinct clients to start from; `keys` [S], one a client.

  With fewer valid clients than K, the first seed stands in for those that lack.
  """
  only_valid = lambda seeds: jnp.where(valid[seeds], seeds, seeds[0])
  if seeding == 'random':
    draw = jnp.where(valid, jax.vmap(jax.random.uniform)(keys), -1.0)
    return only_valid(jax.lax.top_k(draw, num_clusters)[1])
  if seeding != 'plusplus':
    raise ValueError(f"seeding must be 'random' or 'plusplus', not {seeding!r}.")
  norms = jnp.diagonal(gram)
  gumbel = jax.vmap(lambda k: jax.random.gumbel(k, (num_clusters,)))(keys)
  odds = valid.astype(jnp.float32)  # The first seed is uniform.
  left, nearest, seeds = valid, jnp.full(valid.shape, jnp.inf), []
  for k in range(num_clusters):
    seed = (jnp.log(odds) + gumbel[:, k]).argmax()  # A draw in proportion to odds.
    seeds.append(seed)
    left = left.at[seed].set(False)
    distance = jnp.maximum(norms + norms[seed] - 2 * gram[seed], 0.0)
    nearest = jnp.minimum(nearest, distance)
    odds = jnp.where(left, nearest, 0.0)
    # Coinciding clients leave nothing to draw in proportion to.
    odds = jnp.where(odds.sum() > 0, odds, left.astype(jnp.float32))
  return only_valid(jnp.stack(seeds))


def _lloyd(
  keys: jax.Array,
  gram: jax.Array,
  valid: jax.Array,
  num_clusters: int,
  seeding: str,
  trim: float,
) -> tuple[jax.Array, jax.Array]:
  """One restart on inner products.

  Returns:
    Coefficients [K, S] that give each center as a sum of clients, and Eq. 6.
  """
  num_clients = gram.shape[0]
  norms = jnp.diagonal(gram)

  def distances(coefficients: jax.Array) -> jax.Array:
    products = jnp.matmul(gram, coefficients.T, precision=_HIGHEST)
    center_norms = (coefficients * products.T).sum(axis=1)
    return norms[:, None] - 2 * products + center_norms[None]

  def kept(all_distances: jax.Array, assignment: jax.Array) -> jax.Array:
    nearest = all_distances.min(axis=1)
    return keep_nearest(nearest, assignment, valid, num_clusters, trim)

  def iterate(loop):
    step, _, assignment, coefficients = loop
    keep = kept(distances(coefficients), assignment)
    members = jax.nn.one_hot(assignment, num_clusters) * keep[:, None]
    sizes = members.sum(axis=0)
    means = (members / jnp.maximum(sizes, 1)[None]).T
    coefficients = jnp.where(sizes[:, None] > 0, means, coefficients)
    return step + 1, assignment, distances(coefficients).argmin(axis=1), coefficients

  def moving(loop):
    step, before, now, _ = loop
    return (step < MAX_ITERATIONS) & ((before != now) & valid).any()

  seeds = _seed(keys, gram, valid, num_clusters, seeding)
  coefficients = jax.nn.one_hot(seeds, num_clients)
  first = distances(coefficients).argmin(axis=1)
  start = iterate((0, first, first, coefficients))
  _, _, assignment, coefficients = jax.lax.while_loop(moving, iterate, start)
  final = distances(coefficients)
  keep = kept(final, assignment)
  return coefficients, jnp.where(keep, final.min(axis=1), 0.0).sum() / keep.sum()
