"""The E-step, the M-step and the k-means that starts FeSEM (Section 4.3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import tree
from fesem_jax.base import Clusters, Params

# Restarts of k-means run on inner products between clients, [n, n]; with more
# clients than this they run on a random sample, and the best is refined on all.
MAX_GRAM_CLIENTS = 4096
MAX_ITERATIONS = 100

_HIGHEST = jax.lax.Precision.HIGHEST


def e_step(stack: Params, centers: Params) -> jax.Array:
  """Assigns each client to its nearest center (Eq. 8).

  Args:
    stack: [S, ...] client models.
    centers: [K, ...].

  Returns:
    [S] int32 in 0..K-1; ties go to the smallest.
  """
  return tree.squared_distances(stack, centers).argmin(axis=-1).astype(jnp.int32)


def m_step(
  stack: Params, assignment: jax.Array, weights: jax.Array, centers: Params
) -> Params:
  """Moves each center to the mean of its clients (Eq. 9).

  Args:
    stack: [S, ...] client models.
    assignment: [S] int32.
    weights: [S] float32; all 1 in the paper.
    centers: [K, ...] old centers; one without clients stays where it is.

  Returns:
    [K, ...] new centers.
  """
  return tree.weighted_mean(stack, assignment, weights, centers)


def objective(
  stack: Params, centers: Params, assignment: jax.Array, counts: jax.Array
) -> jax.Array:
  """Eq. 6: mean squared distance of clients to their centers, [] float32.

  Args:
    stack: [S, ...] client models.
    centers: [K, ...].
    assignment: [S] int32.
    counts: [S] bool, clients that count.
  """
  distances = tree.squared_distances(stack, centers)
  own = jnp.take_along_axis(distances, assignment[:, None], axis=1)[:, 0]
  return jnp.where(counts, own, 0.0).sum() / jnp.maximum(counts.sum(), 1)


def report(
  old: jax.Array,
  new: jax.Array,
  exists: jax.Array,
  num_clusters: int,
  value: jax.Array,
) -> Clusters:
  """Sums up a round's assignment.

  Args:
    old: [M] int32 assignment before the round.
    new: [M] int32 assignment after it.
    exists: [M] bool, False for padding.
    num_clusters: K.
    value: [] float32 Eq. 6.
  """
  members = jax.nn.one_hot(new, num_clusters, dtype=jnp.int32)
  return Clusters(
    assignment=new,
    sizes=(members * exists[:, None]).sum(axis=0),
    moved=((old != new) & exists).sum(),
    objective=value,
  )


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


def kmeans(
  key: jax.Array,
  stack: Params,
  exists: jax.Array,
  num_clusters: int,
  *,
  restarts: int = 20,
  seeding: str = 'random',
) -> KMeans:
  """K-means over client models; the best of several restarts (Section 6.1.4).

  Every center Lloyd's algorithm visits is a weighted sum of clients, so all
  restarts run at once on the inner products between clients: one pass over the
  stack however many restarts. The winner is then iterated on the stack itself
  until no client moves.

  Args:
    key: decides the seeds.
    stack: [M, ...] client models.
    exists: [M] bool, False for clients to leave out.
    num_clusters: K.
    restarts: runs from different seeds; least Eq. 6 wins.
    seeding: 'random' takes K distinct clients, as the paper does; 'plusplus'
      draws them in proportion to squared distance (k-means++).

  Returns:
    `KMeans`; clients left out are assigned to the nearest center too.
  """
  num_clients = exists.shape[0]
  sample_key, seed_key = jax.random.split(key)
  if num_clients > MAX_GRAM_CLIENTS:
    draw = jnp.where(exists, jax.random.uniform(sample_key, (num_clients,)), 2.0)
    sample = jnp.argsort(draw)[:MAX_GRAM_CLIENTS]
    sampled, valid = tree.take(stack, sample), exists[sample]
  else:
    sampled, valid = stack, exists

  gram = centered_gram(sampled, valid)
  run = lambda k: _lloyd(k, gram, valid, num_clusters, seeding)
  coefficients, values = jax.vmap(run)(jax.random.split(seed_key, restarts))
  best = coefficients[values.argmin()]
  combine = lambda x: jnp.einsum('ks,s...->k...', best, x, precision=_HIGHEST)
  centers = jax.tree.map(combine, tree.where(valid, sampled, tree.zeros_like(sampled)))

  def refine(loop):
    step, _, assignment, centers = loop
    centers = m_step(stack, assignment, exists.astype(jnp.float32), centers)
    return step + 1, assignment, e_step(stack, centers), centers

  def moving(loop):
    step, before, now, _ = loop
    return (step < MAX_ITERATIONS) & ((before != now) & exists).any()

  first = e_step(stack, centers)
  _, _, assignment, centers = jax.lax.while_loop(
    moving, refine, refine((0, first, first, centers))
  )
  return KMeans(assignment, centers, objective(stack, centers, assignment, exists))


def centered_gram(stack: Params, valid: jax.Array) -> jax.Array:
  """[S, S] inner products of clients about their mean; 0 where not valid.

  Centered before multiplying: clients differ far less than they measure.
  """
  count = jnp.maximum(valid.sum(), 1)

  def product(x: jax.Array) -> jax.Array:
    keep = valid.reshape((-1,) + (1,) * (x.ndim - 1))
    mean = jnp.where(keep, x, 0).sum(axis=0, keepdims=True) / count
    flat = jnp.where(keep, x - mean, 0).reshape(x.shape[0], -1)
    return jnp.matmul(flat, flat.T, precision=_HIGHEST)

  return sum(jax.tree.leaves(jax.tree.map(product, stack)))


def _seed(
  key: jax.Array, gram: jax.Array, valid: jax.Array, num_clusters: int, seeding: str
) -> jax.Array:
  """[K] int32: K distinct clients to start from."""
  if seeding == 'random':
    draw = jnp.where(valid, jax.random.uniform(key, valid.shape), -1.0)
    return jax.lax.top_k(draw, num_clusters)[1]
  if seeding != 'plusplus':
    raise ValueError(f"seeding must be 'random' or 'plusplus', not {seeding!r}.")
  norms = jnp.diagonal(gram)
  keys = jax.random.split(key, num_clusters)
  nearest = jnp.where(valid, 1.0, 0.0)  # The first seed is uniform.
  seeds = []
  for k in range(num_clusters):
    seed = jax.random.categorical(keys[k], jnp.log(nearest))
    seeds.append(seed)
    distance = jnp.maximum(norms + norms[seed] - 2 * gram[seed], 0.0)
    distance = jnp.where(valid, distance, 0.0).at[seed].set(0.0)
    nearest = distance if k == 0 else jnp.minimum(nearest, distance)
    # Coinciding clients leave nothing to draw in proportion to.
    left = valid.at[jnp.stack(seeds)].set(False).astype(jnp.float32)
    nearest = jnp.where(nearest.sum() > 0, nearest, left)
  return jnp.stack(seeds)


def _lloyd(
  key: jax.Array, gram: jax.Array, valid: jax.Array, num_clusters: int, seeding: str
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

  def iterate(loop):
    step, _, assignment, coefficients = loop
    members = jax.nn.one_hot(assignment, num_clusters) * valid[:, None]
    sizes = members.sum(axis=0)
    means = (members / jnp.maximum(sizes, 1)[None]).T
    coefficients = jnp.where(sizes[:, None] > 0, means, coefficients)
    return step + 1, assignment, distances(coefficients).argmin(axis=1), coefficients

  def moving(loop):
    step, before, now, _ = loop
    return (step < MAX_ITERATIONS) & ((before != now) & valid).any()

  seeds = _seed(key, gram, valid, num_clusters, seeding)
  coefficients = jax.nn.one_hot(seeds, num_clients)
  first = distances(coefficients).argmin(axis=1)
  start = iterate((0, first, first, coefficients))
  _, _, _, coefficients = jax.lax.while_loop(moving, iterate, start)
  nearest = distances(coefficients).min(axis=1)
  return coefficients, jnp.where(valid, nearest, 0.0).sum() / valid.sum()
