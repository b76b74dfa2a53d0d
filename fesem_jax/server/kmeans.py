"""K-means over client models, which starts FeSEM and Robust (Section 6.1.4)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core.gram_matrices import centered_gram
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.platforms import per_device
from fesem_jax.core.sampling import first_at_random
from fesem_jax.core.types import Params
from fesem_jax.server.em import e_step, m_step, mean_distance

# The restarts compare so many clients, at least: 256^2 products of models cost less
# than a local epoch.
GRAM_CLIENTS = 256
GRAM_CLIENTS_PER_CLUSTER = 32
MAX_ITERATIONS = 100

_HIGHEST = jax.lax.Precision.HIGHEST


class KMeans(NamedTuple):
  """Assignment [M] int32, centers [K, ...], and Eq. 6 [] float32."""

  assignment: jax.Array
  centers: Params
  objective: jax.Array


def clients_seen(num_clients: int, num_clusters: int) -> int:
  """How many clients the restarts of `kmeans` compare."""
  return min(num_clients, max(GRAM_CLIENTS, GRAM_CLIENTS_PER_CLUSTER * num_clusters))


def kmeans(
  key: jax.Array,
  stack: Params,
  weights: jax.Array,
  num_clusters: int,
  client_ids: jax.Array,
  *,
  restarts: int = 20,
  seeding: str = 'random',
  trim: float = 0.0,
  mesh: Mesh | None = None,
) -> KMeans:
  """K-means over client models; the best of several restarts (Section 6.1.4).

  All restarts run at once on inner products of clients, or of a random sample of them,
  as every center is a weighted sum of clients. The best is iterated on all clients.

  Args:
    key: random key of the seeds.
    stack: [M, ...] client models.
    weights: [M] bool or float32 in means and in Eq. 6; 0 only assigns a client.
    num_clusters: K.
    client_ids: [M] int32 ids, from which seeds are drawn.
    restarts: runs from different seeds.
    seeding: 'random' takes K distinct clients, as the paper; 'plusplus' is k-means++.
    trim: share of each cluster, the clients farthest from its center, that its
      mean and Eq. 6 leave out (trimmed k-means, Ghosh et al. 2019).
    mesh: see `e_step`.
  """
  exists, weights = weights > 0, weights.astype(jnp.float32)
  chex.assert_tree_shape_prefix((stack, client_ids), exists.shape)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(client_ids))
  sample, valid, heavy = None, exists, weights
  sample_size = clients_seen(exists.shape[0], num_clusters)
  if exists.shape[0] > sample_size:
    sample = first_at_random(keys, exists, sample_size)
    valid, keys, heavy = exists[sample], keys[sample], weights[sample]
  gram = centered_gram(stack, valid, mesh, sample)

  def restart(number):
    restart_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
    return _lloyd(restart_keys, gram, valid, heavy, num_clusters, seeding, trim)

  coefficients, values = jax.vmap(restart)(jnp.arange(restarts))
  best = coefficients[values.argmin()].T
  if sample is not None:
    best = jnp.zeros((exists.shape[0], num_clusters)).at[sample].set(best)
  centers = _combined(stack, best, mesh)

  def refine(loop):
    step, _, assignment, distance, centers = loop
    included = keep_nearest(distance, assignment, exists, num_clusters, trim)
    included_weights = jnp.where(included, weights, 0.0)
    centers = m_step(stack, assignment, included_weights, centers, mesh)
    return step + 1, assignment, *e_step(stack, centers, mesh), centers

  def is_moving(loop):
    step, previous, current, _, _ = loop
    goes_on = (step < MAX_ITERATIONS) & ((previous != current) & exists).any()
    return (step == 0) | goes_on

  first, distance = e_step(stack, centers, mesh)
  _, _, assignment, distance, centers = jax.lax.while_loop(
    is_moving, refine, (0, first, first, distance, centers)
  )
  included = keep_nearest(distance, assignment, exists, num_clusters, trim)
  value = mean_distance(distance, jnp.where(included, weights, 0.0))
  return KMeans(assignment, centers, value)


def keep_nearest(
  distance: jax.Array,
  assignment: jax.Array,
  exists: jax.Array,
  num_clusters: int,
  trim: float,
) -> jax.Array:
  """[S] bool: clients left when a cluster of n drops floor(trim n), the farthest."""
  if trim == 0:
    return exists
  cluster = jnp.where(exists, assignment, num_clusters)
  order = jnp.lexsort((-distance, cluster))  # By cluster, the farthest first.
  sizes = jnp.bincount(cluster, length=num_clusters + 1)
  starts = jnp.cumsum(sizes) - sizes
  rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
  rank = rank - starts[cluster]
  # The epsilon keeps floor(0.1 * 30) at 3 in float32.
  dropped = jnp.floor(variable(trim) * sizes[cluster] + 1e-4)
  return exists & (rank >= dropped)


def _combined(stack: Params, shares: jax.Array, mesh: Mesh | None) -> Params:
  """[K, ...]: sums of clients [S, ...] by their shares [S, K] of each."""

  def on_device(stack, shares):
    def combine(x):
      return jnp.einsum('sk,s...->k...', shares, x, precision=_HIGHEST)

    return None, jax.tree.map(combine, stack)

  return per_device(on_device, mesh, 2)(stack, shares)[1]


def _seed(
  keys: jax.Array, gram: jax.Array, valid: jax.Array, num_clusters: int, seeding: str
) -> jax.Array:
  """[K] int32 distinct clients to start from, or the first one for any that lack."""

  def only_valid(seeds):
    return jnp.where(valid[seeds], seeds, seeds[0])

  if seeding == 'random':
    draw = jnp.where(valid, jax.vmap(jax.random.uniform)(keys), -1.0)
    return only_valid(jax.lax.top_k(draw, num_clusters)[1])
  norms = jnp.diagonal(gram)
  gumbel = jax.vmap(lambda k: jax.random.gumbel(k, (num_clusters,)))(keys)
  odds = valid.astype(jnp.float32)  # The first seed is uniform.
  remaining, nearest, seeds = valid, jnp.full(valid.shape, jnp.inf), []
  for k in range(num_clusters):
    seed = (jnp.log(odds) + gumbel[:, k]).argmax()  # A draw in proportion to odds.
    seeds.append(seed)
    remaining = remaining.at[seed].set(False)
    distance = jnp.maximum(norms + norms[seed] - 2 * gram[seed], 0.0)
    nearest = jnp.minimum(nearest, distance)
    odds = jnp.where(remaining, nearest, 0.0)
    # Coinciding clients leave nothing to draw in proportion to.
    odds = jnp.where(odds.sum() > 0, odds, remaining.astype(jnp.float32))
  return only_valid(jnp.stack(seeds))


def _lloyd(
  keys: jax.Array,
  gram: jax.Array,
  valid: jax.Array,
  weights: jax.Array,
  num_clusters: int,
  seeding: str,
  trim: float,
) -> tuple[jax.Array, jax.Array]:
  """One restart on inner products: centers as sums of clients [K, S], and Eq. 6."""
  num_clients = gram.shape[0]
  norms = jnp.diagonal(gram)

  def distances(coefficients: jax.Array) -> jax.Array:
    products = jnp.matmul(gram, coefficients.T, precision=_HIGHEST)
    center_norms = (coefficients * products.T).sum(axis=1)
    return norms[:, None] - 2 * products + center_norms[None]

  def included(all_distances: jax.Array, assignment: jax.Array) -> jax.Array:
    nearest = all_distances.min(axis=1)
    return keep_nearest(nearest, assignment, valid, num_clusters, trim)

  def iterate(loop):
    step, _, assignment, coefficients = loop
    mask = included(distances(coefficients), assignment)
    included_weights = jnp.where(mask, weights, 0.0)
    members = jax.nn.one_hot(assignment, num_clusters) * included_weights[:, None]
    sizes = members.sum(axis=0)
    means = (members / jnp.where(sizes > 0, sizes, 1.0)[None]).T
    coefficients = jnp.where(sizes[:, None] > 0, means, coefficients)
    return step + 1, assignment, distances(coefficients).argmin(axis=1), coefficients

  def is_moving(loop):
    step, previous, current, _ = loop
    goes_on = (step < MAX_ITERATIONS) & ((previous != current) & valid).any()
    return (step == 0) | goes_on

  seeds = _seed(keys, gram, valid, num_clusters, seeding)
  coefficients = jax.nn.one_hot(seeds, num_clients)
  first = distances(coefficients).argmin(axis=1)
  _, _, assignment, coefficients = jax.lax.while_loop(
    is_moving, iterate, (0, first, first, coefficients)
  )
  final = distances(coefficients)
  included_weights = jnp.where(included(final, assignment), weights, 0.0)
  return coefficients, mean_distance(final.min(axis=1), included_weights)
