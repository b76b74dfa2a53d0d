"""How well two clusterings of the same clients agree.

The figures are scikit-learn's, whose import takes longer than a small run's rounds.
"""

import numpy as np


def contingency(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """[A, B] int64: how many clients are in each cluster of one and of the other.

  Args:
    first: [M] int or names.
    second: [M] int or names.
  """
  rows, row = np.unique(first, return_inverse=True)
  columns, column = np.unique(second, return_inverse=True)
  cells = row * len(columns) + column
  counts = np.bincount(cells, minlength=len(rows) * len(columns))
  return counts.reshape(len(rows), len(columns)).astype(np.int64)


def adjusted_rand_index(first: np.ndarray, second: np.ndarray) -> float:
  """Agreement on which pairs of clients belong together; 1 if all, 0 as by chance.

  Args:
    first: [M] int or names.
    second: [M] int or names.
  """
  counts = contingency(first, second)
  size = int(counts.sum())
  # Ordered pairs together in both, in the first only, in the second only, in neither.
  squares = int((counts**2).sum())
  only_first = int((counts.sum(axis=1) ** 2).sum()) - squares
  only_second = int((counts.sum(axis=0) ** 2).sum()) - squares
  both, neither = squares - size, size**2 - only_first - only_second - squares
  if only_first == only_second == 0:
    return 1.0
  of_first, of_second = both + only_first, both + only_second
  return (
    2.0
    * (both * neither - only_first * only_second)
    / (of_first * (only_first + neither) + of_second * (only_second + neither))
  )


def normalized_mutual_information(first: np.ndarray, second: np.ndarray) -> float:
  """Mutual information over the mean of both entropies, in [0, 1].

  Args:
    first: [M] int or names.
    second: [M] int or names.
  """
  counts = contingency(first, second)
  if counts.shape == (np.count_nonzero(counts),) * 2:  # The same clusters.
    return 1.0
  if min(counts.shape) == 1:
    return 0.0
  joint = counts / counts.sum()
  of_first, of_second = joint.sum(axis=1), joint.sum(axis=0)
  row, column = np.nonzero(joint)
  shares = joint[row, column]
  information = (shares * np.log(shares / (of_first[row] * of_second[column]))).sum()
  information = max(0.0, float(information))
  return information / ((_entropy(of_first) + _entropy(of_second)) / 2)


def _entropy(shares: np.ndarray) -> float:
  return -float((shares * np.log(shares)).sum())
