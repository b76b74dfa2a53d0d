"""Tests whether K groups of clients are separable, before training.

Each client's training examples are split in two halves, and each half gives a gradient
(or the change of some epochs) at common random models. Clusters are made of one half
and measured on the other one, so that neither k-means nor the sampling of examples can
make clusters that are not there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optax

from fesem_jax.analysis import common_start, num_clusters
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.splits import halves
from fesem_jax.evaluation.agreement import adjusted_rand_index
from fesem_jax.run.programs import Programs
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

# What is compared of each half: its full-batch gradient, or what an epoch changes.
BY = ('gradients', 'updates')

_CLOUDS, _MATCHINGS, _RESTARTS = 19, 999, 20
MAX_P = 0.05
# Standard deviations from 0 to what a test at `MAX_P` finds four times in five.
_DETECTED = 1.645 + 0.842
# See `num_clusters.recommend`.
_AGREE = 0.8


class Separation(NamedTuple):
  """The separation of K clusters of clients.

  Attributes:
    num_clusters: K.
    pseudo_f: mean square between clusters over that within them (Calinski and
      Harabasz, 1974), of the half that k-means has not seen: about 1 where its clusters
      mean nothing. None where it is not defined, as all that follow.
    of_one_cloud: the mean of that in clouds without clusters; see
      `num_clusters.one_cloud`.
    p_value: how often such a cloud has one as large.
    ratio: variance between clusters over that of clients, with the noise of half their
      examples, within clusters.
    explained: share of what clients differ by, without that noise, that is between the
      clusters (intraclass correlation), in [0, 1]; None where clients do not differ.
    agreement: adjusted Rand index of the clusters of either half.
  """

  num_clusters: int
  pseudo_f: float | None = None
  of_one_cloud: float | None = None
  p_value: float | None = None
  ratio: float | None = None
  explained: float | None = None
  agreement: float | None = None


class Measured(NamedTuple):
  """The result of `separation`.

  Attributes:
    noise: share of the variance between half clients that is due to their examples: 1
      where clients do not differ.
    p_differ: how often halves that are matched at random agree as much as those of one
      client; large where clients do not differ.
    rows: for each K.
    clusters: for each K, [C] int cluster of each client by its first half.
    clients: [C] int positions of the clients that were measured.
    examples: the median of their training examples.
    detectable: the least share of the variance between half clients that differences
      of clients must make to be detected four times in five.
  """

  noise: float
  p_differ: float
  rows: list[Separation]
  clusters: list[np.ndarray]
  clients: np.ndarray
  examples: float
  detectable: float


def separation(
  local: LocalTraining,
  train: FederatedData,
  list_of_k: Sequence[int],
  *,
  by: str = 'gradients',
  epochs: int = 1,
  models: int = 5,
  seed: int = 0,
  data_placement: str = 'auto',
  programs: Programs | None = None,
) -> Measured:
  """Measures whether K groups of clients can be separated.

  Args:
    local: how clients train; all of them alike (no `work`).
    train: training split of M clients, on the host; clients of a single example are
      left out.
    list_of_k: each K.
    by: one of `BY`.
    epochs: local epochs of 'updates'.
    models: random models that clients are compared at, side by side: a single one may
      show some differences badly.
    seed: decides the halves, the model, k-means and the clouds.
    data_placement: see `LocalTraining`.
    programs: of earlier calls with the same `local`.

  Raises:
    UserError: if fewer than three clients can be measured.
  """
  check_choice('by', by, BY)
  parts, clients = halves(train, seed)
  _check_enough(len(clients))
  local = local._replace(work=None)  # By numbers of clients, which halves share.
  if by == 'gradients':
    once = Schedule(batch_size=0, steps=1)
    local = local._replace(optimizer=optax.sgd(1.0), augmentation=None, schedule=once)
    local, epochs = local._replace(sends=None), 1
  programs = programs or Programs()
  grams = [
    common_start.inner_products(
      local,
      parts,
      epochs=epochs,
      seed=seed + i,
      data_placement=data_placement,
      programs=programs,
    )
    for i in range(models)
  ]
  gram = np.sum(grams, axis=0)
  finite = np.isfinite(gram.diagonal().reshape(2, -1)).all(axis=0)
  _check_enough(finite.sum())
  halves_of_finite = np.flatnonzero(np.tile(finite, 2))
  points = num_clusters.coordinates(gram[np.ix_(halves_of_finite, halves_of_finite)])
  first, second = np.split(points, 2)
  p_differ = p_of_differences(first, second, seed)
  rows, clusters = separations(first, second, list_of_k, seed)
  if p_differ > MAX_P:
    rows = [row._replace(explained=None) for row in rows]
  share = _ratio(noise(first, second), _spread(first, second))
  clients = clients[finite]
  return Measured(
    min(share, 1.0),
    p_differ,
    rows,
    clusters,
    clients,
    float(np.median(train.sizes()[clients])),
    detectable(first, second),
  )


def _check_enough(count: int) -> None:
  check(count > 2, 'train: fewer than 3 clients have two examples or more')


def noise(first: np.ndarray, second: np.ndarray) -> float:
  """Variance of half a client's point that is due to its examples.

    nu^2 = sum_i |a_i - b_i|^2 / (2 M)

  The a_i (`first`) and b_i (`second`), [M, D] float64, are the points of the halves.
  """
  return float(np.square(first - second).sum(axis=1).mean() / 2)


def p_of_differences(first: np.ndarray, second: np.ndarray, seed: int) -> float:
  """True if clients differ at all: a permutation test.

  The two halves of a client agree by sum_i (a_i - a) (b_i - b), about the means a and b
  of all. If clients do not differ, halves that are matched at random agree as much.

  The a_i are `first`, the b_i `second`, [M, D] float64 each. Returns the share of the
  matchings, the true one among them, that agree as much.
  """
  rng = np.random.default_rng(seed)
  products = _products(first, second)
  rows = np.arange(len(first))
  sums = [products[rows, rng.permutation(rows)].sum() for _ in range(_MATCHINGS)]
  return float((1 + np.sum(sums >= np.trace(products))) / (1 + _MATCHINGS))


def detectable(first: np.ndarray, second: np.ndarray) -> float:
  """The least differences of clients that `p_of_differences` finds four times in five.

  Its sum has the variance sum_ij P_ij^2 / (M - 1) over random matchings, P_ij =
  (a_i - a) (b_j - b), and the mean (M - 1) V s if the clients differ by a share s of
  the variance V between half clients. Returns that share, at most 1.
  """
  count = len(first)
  deviation = np.sqrt(np.square(_products(first, second)).sum() / (count - 1))
  share = _ratio(_DETECTED * deviation, (count - 1) * _spread(first, second))
  return min(share, 1.0)


def _products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """[M, M] inner products of the first and the second halves, about their means."""
  return (first - first.mean(axis=0)) @ (second - second.mean(axis=0)).T


def _spread(first: np.ndarray, second: np.ndarray) -> float:
  """Variance between half clients: sum_i |b_i - b|^2 / (M - 1), mean of both halves."""
  variances = [
    np.square(p - p.mean(axis=0)).sum() / (len(p) - 1) for p in (first, second)
  ]
  return float(np.mean(variances))


def components(points: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
  """The variance of clients in clusters, taken apart (one-way analysis of variance).

  Args:
    points: [M, D] float64.
    labels: [M] int cluster of each; K of them occur.

  Returns:
    Mean square between clusters, sum_k m_k |b_k - b|^2 / (K - 1), where b is the mean
    of all clients, b_k that of the m_k clients of cluster k; mean square within
    clusters, sum_i |b_i - b_{r_i}|^2 / (M - K); and (M - sum_k m_k^2 / M) / (K - 1),
    the clients of a cluster, on average. Nothing is between and within clusters unless
    1 < K < M.
  """
  _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
  count, k = len(points), len(sizes)
  if not 1 < k < count:
    return 0.0, 0.0, 1.0
  centers = np.zeros((k, points.shape[1]))
  np.add.at(centers, labels, points)
  centers /= sizes[:, None]
  away = np.square(centers - points.mean(axis=0)).sum(axis=1)
  within = np.square(points - centers[labels]).sum()
  size = (count - np.square(sizes).sum() / count) / (k - 1)
  return float(sizes @ away / (k - 1)), float(within / (count - k)), float(size)


def separations(
  first: np.ndarray, second: np.ndarray, list_of_k: Sequence[int], seed: int
) -> tuple[list[Separation], list[np.ndarray]]:
  """How far apart K clusters are, for each K, beside clouds without clusters.

  `first` and `second`, [M, D] float64, are the points of the halves of M clients;
  `seed` decides k-means and the clouds. Returns `Separation` for each K, and the
  clusters [M] of the first halves.
  """
  rng, width = np.random.default_rng(seed), first.shape[1]
  pairs = np.hstack([first, second])  # A client's halves stay together.
  turned = [num_clusters.one_cloud(pairs, rng) for _ in range(_CLOUDS)]
  clouds = [(cloud[:, :width], cloud[:, width:]) for cloud in turned]
  of_noise = noise(first, second)
  rows, clusters = [], []
  for k in list_of_k:
    labels = num_clusters.k_means(first, k, seed, _RESTARTS)
    clusters.append(labels)
    if not 1 < k < len(first):
      rows.append(Separation(k))
      continue
    others = num_clusters.k_means(second, k, seed, _RESTARTS)
    between, within, size = _crossed(first, second, labels, others)
    share = _ratio(between, within)
    of_clouds = []
    for halves_of in clouds:
      own = [num_clusters.k_means(half, k, seed, _RESTARTS) for half in halves_of]
      of_clouds.append(_ratio(*_crossed(*halves_of, *own)[:2]))
    apart = max(0.0, (between - within) / size)
    inside = max(0.0, within - of_noise)
    rows.append(
      Separation(
        k,
        share,
        float(np.mean(of_clouds)),
        num_clusters.p_value(share, of_clouds),
        _ratio(apart, within),
        _ratio(apart, apart + inside),
        float(adjusted_rand_index(labels, others)),
      )
    )
  return rows, clusters


def _crossed(
  first: np.ndarray, second: np.ndarray, labels: np.ndarray, others: np.ndarray
) -> np.ndarray:
  """`components` of each half in the clusters of the other one, their mean."""
  return np.mean([components(second, labels), components(first, others)], axis=0)


def _ratio(a: float, b: float) -> float:
  return float(a / b) if b > 0 else 0.0


def told_apart(row: Separation) -> bool:
  """True if clusters are there (p <= 0.05) and found again in other examples.

  The clusters of either half are to agree by an adjusted Rand index of 0.8.
  """
  if row.p_value is None or row.agreement is None:
    return False
  return row.p_value <= MAX_P and row.agreement >= _AGREE


def verdict(measured: Measured) -> str:
  """States whether groups can be separated, and the best K."""
  if measured.p_differ > MAX_P:
    return (
      f'No difference between clients is detected (p = {measured.p_differ:.2g}), and '
      f'no groups. With {len(measured.clients)} clients of {measured.examples:g} '
      'training examples (median), differences are detected reliably if they make at '
      f'least {100 * measured.detectable:.2g} % of the variance between half clients. '
      'Smaller ones, and groups of such clients, may exist: more examples a client '
      'lower the limit, and FeSEM beside FedAvg tells whether clusters help.'
    )
  of_samples = f'{100 * measured.noise:.0f} % of the variance is sampling noise'
  apart = [row for row in measured.rows if told_apart(row)]
  if not apart:
    return (
      f'Clients differ ({of_samples}), but no K tried gives groups that are tighter '
      'than one Gaussian cloud and recur in other examples. Groups may exist that half '
      f'of the {measured.examples:g} training examples of a client (median) do not '
      'show.'
    )
  best = max(apart, key=lambda row: row.explained or 0.0)
  others = [str(row.num_clusters) for row in apart if row is not best]
  also = f' Also separated, explaining less: K = {", ".join(others)}.' if others else ''
  return (
    f'K = {best.num_clusters} groups can be separated: they explain '
    f'{100 * (best.explained or 0):.0f} % of client differences, the ratio of '
    f'variances is {best.pseudo_f:.1f} ({best.of_one_cloud:.1f} in one Gaussian '
    'cloud), and the clusters of either half of the examples agree (adjusted Rand '
    f'index {best.agreement:.2f}; {of_samples}).{also}'
  )
