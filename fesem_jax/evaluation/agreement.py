"""Agreement between two clusterings of the same clients, each [M] int or names.

The figures are scikit-learn's, whose import takes longer than a small run's rounds.
"""

import functools
import math

import numpy as np


def contingency(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """[A, B] int64: how many clients are in each cluster of one and of the other."""
  rows, row = np.unique(first, return_inverse=True)
  columns, column = np.unique(second, return_inverse=True)
  cells = row * len(columns) + column
  counts = np.bincount(cells, minlength=len(rows) * len(columns))
  return counts.reshape(len(rows), len(columns)).astype(np.int64)


def figures(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
  """`ari`, `nmi` and `ami` of two clusterings.

  NMI is the mutual information over the mean of both entropies, in [0, 1], and AMI is
  adjusted for chance: 1 for the same clusters, 0 as by chance. Unlike NMI, it does not
  grow with the number of clusters (Vinh, Epps and Bailey, 2010; the normalizer is the
  mean of both entropies).
  """
  counts = contingency(first, second)
  return {
    'ari': _rand_index(counts),
    'nmi': _normalized(counts),
    'ami': _adjusted(counts),
  }


def adjusted_rand_index(first: np.ndarray, second: np.ndarray) -> float:
  """Agreement on which pairs of clients belong together; 1 if all, 0 as by chance."""
  return _rand_index(contingency(first, second))


def _rand_index(counts: np.ndarray) -> float:
  size = int(counts.sum())
  # Ordered pairs together in both, in the first only, in the second only, in neither.
  squares = int((counts**2).sum())
  only_first = int((counts.sum(axis=1) ** 2).sum()) - squares
  only_second = int((counts.sum(axis=0) ** 2).sum()) - squares
  together, apart = squares - size, size**2 - only_first - only_second - squares
  if only_first == only_second == 0:
    return 1.0
  in_first, in_second = together + only_first, together + only_second
  return (
    2.0
    * (together * apart - only_first * only_second)
    / (in_first * (only_first + apart) + in_second * (only_second + apart))
  )


def _normalized(counts: np.ndarray) -> float:
  if _same(counts):
    return 1.0
  if min(counts.shape) == 1:
    return 0.0
  return _information(counts) / _mean_entropy(counts)


def _adjusted(counts: np.ndarray) -> float:
  if _same(counts):
    return 1.0
  if min(counts.shape) == 1:
    return 0.0
  expected, smallest = _expected_information(counts), np.finfo(np.float64).eps
  above = _information(counts) - expected
  most = _mean_entropy(counts) - expected
  # Both may vanish up to rounding; their signs are kept.
  return float(
    np.copysign(max(abs(above), smallest), above)
    / np.copysign(max(abs(most), smallest), most)
  )


def _same(counts: np.ndarray) -> bool:
  """True if two clusterings are the same but for the names of their clusters."""
  return counts.shape == (np.count_nonzero(counts),) * 2


def _information(counts: np.ndarray) -> float:
  """Mutual information in nats."""
  joint = counts / counts.sum()
  first_sizes, second_sizes = joint.sum(axis=1), joint.sum(axis=0)
  row, column = np.nonzero(joint)
  shares = joint[row, column]
  information = (
    shares * np.log(shares / (first_sizes[row] * second_sizes[column]))
  ).sum()
  return max(0.0, float(information))


def _mean_entropy(counts: np.ndarray) -> float:
  """Mean of the entropies of both clusterings, in nats."""
  joint = counts / counts.sum()
  return (_entropy(joint.sum(axis=1)) + _entropy(joint.sum(axis=0))) / 2


def _entropy(shares: np.ndarray) -> float:
  return -float((shares * np.log(shares)).sum())


def _expected_information(counts: np.ndarray) -> float:
  """Mean mutual information of clusterings of these sizes that are dealt at random.

  The clients that two clusters share are then hypergeometric.
  """
  size = int(counts.sum())
  log = _log_factorials(size)
  total = 0.0
  for a in counts.sum(axis=1):
    for b in counts.sum(axis=0):
      shared = np.arange(max(1, a + b - size), min(a, b) + 1)
      ways = log[a] + log[b] + log[size - a] + log[size - b] - log[size]
      ways = ways - log[shared] - log[a - shared] - log[b - shared]
      ways = ways - log[size - a - b + shared]
      information = shared / size * np.log(size * shared / (a * b))
      total += float((information * np.exp(ways)).sum())
  return total


@functools.lru_cache(maxsize=1)
def _log_factorials(most: int) -> np.ndarray:
  """[most + 1] float64 logarithms of 0!, 1!, ..."""
  return np.array([math.lgamma(n + 1) for n in range(most + 1)])
