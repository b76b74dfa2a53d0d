"""The label skew between clients."""

import numpy as np


def label_skew(counts: np.ndarray) -> float:
  """Mean total-variation distance of clients' label distributions to all data's.

  `counts` [M, L] are examples of each class on each client. 0 for equal mixtures of
  classes, towards 1 - 1 / L for one class a client; NaN without examples.
  """
  counts = counts[counts.any(axis=1)]
  if not len(counts):
    return float('nan')
  shares, whole = (
    counts / counts.sum(axis=1)[:, None],
    counts.sum(axis=0) / counts.sum(),
  )
  return float(np.abs(shares - whole).sum(axis=1).mean() / 2)
