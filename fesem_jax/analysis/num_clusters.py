"""The number of clusters, estimated from clients' models of one common start."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from fesem_jax.algorithms.common.first_clusters import initial_training, random_starts
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.arrangement import arrange, order_of_clients
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.gram_matrices import centered_gram
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.evaluation.agreement import adjusted_rand_index
from fesem_jax.run import programs
from fesem_jax.server import comparison
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

# Clouds without clusters: where a silhouette is above all 19, p is 1 / 20.
_CLOUDS, _MAX_P = 19, 0.05
# Steinley (2004) calls the agreement of two clusterings good from here on.
_STABLE = 0.8
_SCORES = 'silhouette_mean', 'silhouette_of_one_cloud', 'p_value'


def select_k(
  local: LocalTraining,
  train: FederatedData,
  numbers: Sequence[int],
  seeds: Sequence[int] = range(3),
  grams: Sequence[np.ndarray] = (),
  **options: Any,
) -> dict[str, Any]:
  """Metrics of numbers of clusters K for FeSEM, and the recommended one (Section 5.2).

  For each seed, all clients train from one common start, and k-means clusters their
  models.

  Args:
    local: how clients train.
    train: training split of the clients.
    numbers: K to try.
    seeds: of models and k-means.
    grams: the `inner_products` of each seed, if they exist already.
    **options: `epochs` of local training, `cluster_on`, a part of the model, and
      `data_placement`.

  Returns:
    `recommended`, `reason`, `num_clients`, `seeds`, and `by_k`: K as text -> its
    silhouette, `p_value`, `stability` over seeds, `ari` where the truth is known, and
    `sizes`. What is not defined is None.

  Raises:
    UserError: if fewer than two models are finite.
  """
  models, rows = list[tuple[np.ndarray, np.ndarray]](), list[dict[str, Any]]()
  for place, seed in enumerate(seeds):
    gram = grams[place] if grams else inner_products(local, train, seed=seed, **options)
    finite = np.isfinite(gram.diagonal())
    check(finite.sum() > 1, 'learning_rate: models are not finite after init_epochs')
    models.append((coordinates(gram[np.ix_(finite, finite)]), finite))
  for k in numbers:
    scores, clusters = [], []
    for (points, finite), seed in zip(models, seeds, strict=True):
      scores.append(against_one_cloud(points, k, seed))
      clusters.append(np.full(len(finite), -1))
      clusters[-1][finite] = k_means(points, k, seed)
    rows.append(_row(k, scores, clusters, train.info.clusters))
  recommended, reason = recommend(rows)
  by_k = {str(row['num_clusters']): row for row in rows}
  about: dict[str, Any] = {'recommended': recommended, 'reason': reason}
  about |= {'num_clients': train.num_clients, 'seeds': list(seeds)}
  return about | {'by_k': by_k}


def _row(
  k: int,
  scores: Sequence[tuple[float, float, float] | None],
  clusters: Sequence[np.ndarray],
  truth: np.ndarray | None,
) -> dict[str, Any]:
  """The metrics of one K from those of each seed; cluster -1 is of no model."""
  row: dict[str, Any] = {'num_clusters': k} | dict.fromkeys(_SCORES)
  if None not in scores:
    silhouettes, clouds, p_values = np.transpose(scores)  # type: ignore[arg-type]
    values = silhouettes.mean(), clouds.mean(), np.median(p_values)
    row |= dict(zip(_SCORES, map(float, values), strict=True))
  several = None not in scores and len(scores) > 1
  row['silhouette_std'] = float(np.std(silhouettes, ddof=1)) if several else None
  row['stability'] = stability(clusters) if k > 1 else None
  row['ari'] = None
  if truth is not None:
    aris = [adjusted_rand_index(truth[c >= 0], c[c >= 0]) for c in clusters]
    row['ari'] = float(np.mean(aris))
  sizes = [np.bincount(c[c >= 0], minlength=k) for c in clusters]
  return row | {'sizes': [sorted(x.tolist(), reverse=True) for x in sizes]}


def inner_products(
  local: LocalTraining,
  train: FederatedData,
  *,
  epochs: int = 1,
  seed: int = 0,
  cluster_on: str = 'all',
  data_placement: str = 'auto',
) -> np.ndarray:
  """[M, M] float64 inner products, about their mean, of what FeSEM clusters first.

  Models are NaN where they are not finite, and start as in `simulate` with this seed.
  """
  local = initial_training(local, epochs)
  compare = comparison.build(cluster_on, local.model)
  places = np.argsort(order_of_clients(local, train))
  (train,) = arrange(local, train, data_placement=data_placement)
  key = prng_streams.folded(jax.random.key(seed), prng_streams.INIT)
  key = sharding.replicate(key, local.mesh)

  def products(key: jax.Array, train: FederatedData) -> Any:
    starts = random_starts(local, train, key, 'common')
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
    trained = train_cohort(local, starts, train, everyone(train), train_key)
    finite = trained.took_part()
    alike = compare.alike(trained.params, finite, local.mesh)
    return centered_gram(compare.part(alike), finite, local.mesh), finite

  name = 'models from a common start', (local, cluster_on)
  program = programs.compiled(*name, products, key, train)
  gram, is_finite = processes.on_host(program(key, train))
  gram, is_finite = gram.astype(np.float64), is_finite & np.isfinite(gram.diagonal())
  gram[~is_finite] = gram[:, ~is_finite] = np.nan
  return gram[np.ix_(places, places)]


def coordinates(gram: np.ndarray) -> np.ndarray:
  """[S, S] float64 points that have the inner products `gram` [S, S]."""
  values, vectors = np.linalg.eigh(gram)
  return vectors * np.sqrt(np.maximum(values, 0))


def k_means(points: np.ndarray, k: int, seed: int) -> np.ndarray:
  """[S] int cluster of each point, the best of five starts."""
  from sklearn import cluster  # Slow to import.

  with threadpool_limits(1):  # Starting threads takes longer than the work.
    return cluster.KMeans(k, n_init=5, random_state=seed).fit_predict(points)


def silhouette(points: np.ndarray, k: int, seed: int) -> float | None:
  """Silhouette of k-means of points [S, D]; None where there is none."""
  from sklearn import metrics  # Slow to import.

  if not 1 < k < len(points):
    return None
  if np.ptp(points, axis=0).max() <= 1e-12 * np.abs(points).max():
    return 0.0
  return float(metrics.silhouette_score(points, k_means(points, k, seed)))


def one_cloud(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Points [S, D] of one Gaussian with the same mean and covariance (rotation test)."""
  size = len(points)
  # [S, S - 1], orthogonal to the mean of the rows.
  about_mean = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, 1:]]))[0]
  about_mean = about_mean[:, 1:]
  # Q is uniform only if the diagonal of R is positive.
  q, r = np.linalg.qr(rng.normal(size=(size - 1, size - 1)))
  turned = q * np.sign(np.diagonal(r))[None]
  mean = points.mean(axis=0, keepdims=True)
  return mean + about_mean @ (turned @ (about_mean.T @ points))


def against_one_cloud(
  points: np.ndarray, k: int, seed: int
) -> tuple[float, float, float] | None:
  """The silhouette for K, its mean over 19 clouds without clusters, and its rank p."""
  score = silhouette(points, k, seed)
  if score is None:
    return None
  rng = np.random.default_rng(seed)
  clouds = [silhouette(one_cloud(points, rng), k, seed) or 0.0 for _ in range(_CLOUDS)]
  p = (1 + sum(cloud >= score for cloud in clouds)) / (1 + _CLOUDS)
  return score, float(np.mean(clouds)), p


def stability(assignments: Sequence[np.ndarray]) -> float | None:
  """Mean adjusted Rand index of every two clusterings [S]; None of fewer than two."""
  pairs = itertools.combinations(assignments, 2)
  scores = [adjusted_rand_index(a, b) for a, b in pairs]
  return float(np.mean(scores)) if scores else None


def recommend(rows: Sequence[Mapping[str, Any]]) -> tuple[int | None, str]:
  """The number of clusters to use, None if unknown, with the reason.

  Clusters are worth training if they exist (p <= 0.05) and repeat over seeds (stability
  of at least 0.8). Of such K, it is the one whose silhouette exceeds that of one
  Gaussian cloud by most; if there is none, 1.
  """
  several = [row for row in rows if row['num_clusters'] > 1]
  scored = [r for r in several if None not in (r['p_value'], r['stability'])]
  tight = [row for row in scored if row['p_value'] <= _MAX_P]
  stable = [row for row in tight if row['stability'] >= _STABLE]
  if not several:
    return 1, 'K = 1 is the only number of clusters that was tried.'
  if not scored:
    return None, 'No K is recommended: stability needs two seeds that finish.'
  if not tight:
    return 1, 'K = 1: for no K are clusters tighter than one Gaussian cloud.'
  if not stable:
    best = max(tight, key=lambda row: row['stability'])
    k, ari = best['num_clusters'], best['stability']
    return 1, f'K = 1: clusters are not stable across seeds (K = {k}: ARI {ari:.2f}).'

  def excess(row: Mapping[str, Any]) -> float:
    return row['silhouette_mean'] - row['silhouette_of_one_cloud']

  best = max(stable, key=excess)
  k, ari = best['num_clusters'], best['stability']
  reason = f'K = {k}: its silhouette is {excess(best):.2f} above that of one Gaussian '
  reason += f'cloud, the most of all K that are stable (ARI {ari:.2f}).'
  is_largest = len(several) > 1 and k == max(row['num_clusters'] for row in several)
  return k, reason + ' It is the largest K tried: try larger ones.' * is_largest
