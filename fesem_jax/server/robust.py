"""Aggregation of clients' models: means, and rules that are robust to bad clients.

Every rule maps (stack [S, ...], cluster [S], counts [S], origins [K, ...], mesh) to
centers [K, ...]. Rows are finite, clusters int32 in 0..K-1, and counts bool, False for
rows to leave out. Clients weigh alike; a cluster without clients stays at its origin.
The mesh has the devices that the rows are split over; None if they are whole here.
"""

import functools
from collections.abc import Callable
from typing import Annotated, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax.core import sums, tree
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Params
from fesem_jax.data.expressions import build
from fesem_jax.server.trimmed_mean import trimmed_mean
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, NotNegative, Range, checked

Aggregate: TypeAlias = Callable[
  [Params, jax.Array, jax.Array, Params, Mesh | None], Params
]

BAD_SHARE = 0.1  # Of a cluster's clients, that Krum takes to be bad.


def aggregation(text: str) -> Aggregate | None:
  """The aggregation that a text names; None for the mean, which needs only sums.

    mean               of models
    median             of each coordinate
    trimmed_mean(0.1)  of each coordinate, without this share of values at each end
    norm_bound(1.0)    mean of changes, none longer than this; 0: their median length
    krum(1)            mean of this number of models, the closest to others; see `krum`

  All but the mean withstand bad clients, weight clients equally and keep the models of
  the whole cohort. Lengths and distances include statistics of BatchNorm. The default
  numbers are 0.1, 0 and 1.
  """
  rules = build(text, _RULES, 'aggregation')
  check(len(rules) == 1, f'aggregation: {text!r:.30} is more than one rule')
  return rules[0]


def _trimmed(aggregation: Annotated[float, Range(0, below=0.5)] = 0.1) -> Aggregate:
  return functools.partial(_trimmed_mean, aggregation)


def _trimmed_mean(beta, stack, cluster, counts, origins, mesh=None):
  return trimmed_mean(stack, cluster, counts, beta, origins, mesh)


mean: Aggregate = functools.partial(_trimmed_mean, 0.0)


def _bounded(aggregation: NotNegative = 0.0) -> Aggregate:
  return functools.partial(bounded_mean, aggregation)


def _krum(aggregation: Count = 1) -> Aggregate:
  return functools.partial(krum, BAD_SHARE, aggregation)


_RULES: dict[str, Callable[..., Aggregate | None]] = {
  'mean': lambda: None,
  'median': lambda: functools.partial(_trimmed_mean, 0.5),
  'trimmed_mean': checked(_trimmed),
  'norm_bound': checked(_bounded),
  'krum': checked(_krum),
}


def bounded_mean(
  bound: float,
  stack: Params,
  cluster: jax.Array,
  counts: jax.Array,
  origins: Params,
  mesh: Mesh | None = None,
) -> Params:
  """c_k <- c_k + mean_i (w_i - c_k) min(1, bound / |w_i - c_k|); 0: median length."""
  num_clusters = jax.tree.leaves(origins)[0].shape[0]

  def distances(stack, cluster, origins):
    squares = tree.squared_distances(stack, origins)
    return jnp.sqrt(jnp.take_along_axis(squares, cluster[:, None], axis=1)), None

  lengths, _ = per_device(distances, mesh, 2)(stack, cluster, origins)
  bounds = jnp.full((num_clusters, 1), variable(bound))
  if bound == 0:
    bounds = trimmed_mean(lengths, cluster, counts, 0.5, jnp.zeros_like(bounds), mesh)
  row_bounds, length = bounds[cluster, 0], lengths[:, 0]
  factor = sums.clipping_factor(length, row_bounds)
  ones = counts.astype(jnp.float32)
  total = sums.cluster_sums(stack, cluster, factor * ones, origins, mesh)
  members = jnp.zeros(num_clusters).at[cluster].add(ones)
  return sums.mean_of(total._replace(weight=members), origins)


def krum(
  beta: float,
  models: int,
  stack: Params,
  cluster: jax.Array,
  counts: jax.Array,
  origins: Params,
  mesh: Mesh | None = None,
) -> Params:
  """Mean of the `models` of each cluster closest to others (Blanchard et al., 2017).

  Of n models, f = floor(beta n) bad, the score of one is the sum of its squared
  distances to the n - f - 2 nearest others; the least scores count.
  """
  num_rows = cluster.shape[0]
  # Of models themselves, which lie close together, the expansion has no digits.
  changes = jax.tree.map(lambda x, o: x - o[cluster], stack, origins)
  products = inner_products(changes, mesh)
  squares = jnp.diagonal(products)
  distances = squares[:, None] + squares[None, :] - 2 * products
  distances = jnp.maximum(distances, distances.T)  # Equal to the last bit: ties.
  distances = jnp.where(jnp.isfinite(distances), jnp.maximum(distances, 0.0), jnp.inf)
  num_clusters = jax.tree.leaves(origins)[0].shape[0]
  labels = jnp.where(counts, cluster, num_clusters)  # [S]; K of rows that do not count.
  sizes = jnp.bincount(labels, length=num_clusters + 1)
  same_cluster = labels[:, None] == labels[None, :]
  peers = same_cluster & ~jnp.eye(num_rows, dtype=bool)
  nearest_first = jnp.sort(jnp.where(peers, distances, jnp.inf), axis=1)

  bad = jnp.floor(variable(beta) * sizes + 1e-4).astype(sizes.dtype)
  neighbors = jnp.maximum(sizes - bad - 2, 1)
  counts_neighbor = jnp.arange(num_rows)[None, :] < neighbors[labels][:, None]
  scores = jnp.where(counts_neighbor, nearest_first, 0.0).sum(axis=1)

  order, in_order = jnp.lexsort((scores, labels)), jnp.sort(labels)
  rank = jnp.arange(num_rows) - (jnp.cumsum(sizes) - sizes)[in_order]
  selected = rank < jnp.minimum(sizes, variable(models))[in_order]
  weights = jnp.zeros(num_rows).at[order].set(selected & (in_order < num_clusters))
  return sums.weighted_mean(stack, cluster, weights, origins, mesh)
