"""Agreement between two clusterings of the same clients, each [M] int or names.

The numbers are scikit-learn's, whose import takes longer than a small run.
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


def scores(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
  """`ari`, `nmi` and `ami` of two clusterings.

  NMI is the mutual information over the mean of both entropies; AMI is adjusted for
  chance (Vinh, Epps and Bailey, 2010).
  """
  counts = contingency(first, second)
  ari = _rand_index(counts)
  if counts.shape == (np.count_nonzero(counts),) * 2:  # The same but for names.
    return {'ari': ari, 'nmi': 1.0, 'ami': 1.0}
  if min(counts.shape) == 1:
    return {'ari': ari, 'nmi': 0.0, 'ami': 0.0}
  information, entropy = _information(counts), _mean_entropy(counts)
  expected, smallest = _expected_information(counts), np.finfo(np.float64).eps
  # Both may vanish up to rounding; their signs are kept.
  excess, limit = (
    np.copysign(max(abs(x - expected), smallest), x - expected)
    for x in (information, entropy)
  )
  return {'ari': ari, 'nmi': information / entropy, 'ami': float(excess / limit)}


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
  shares = joint.sum(axis=1), joint.sum(axis=0)
  return sum(-float((p * np.log(p)).sum()) for p in shares) / 2


def _expected_information(counts: np.ndarray) -> float:
  """Mean mutual information of random clusterings of these sizes (hypergeometric)."""
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
