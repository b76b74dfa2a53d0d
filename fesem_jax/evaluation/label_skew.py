"""The label skew between clients."""

import numpy as np

_BLOCK = 2**15  # Clients that are looked at at once.


def label_skew(counts: np.ndarray) -> float:
  """Mean total-variation distance of clients' label distributions to all data's.

  `counts` [M, L] are examples of each class on each client. 0 for equal mixtures of
  classes, towards 1 - 1 / L for one class a client; NaN without examples.
  """
  sizes = counts.sum(axis=1)
  clients = np.flatnonzero(sizes > 0)
  if not len(clients):
    return float('nan')
  whole = counts.sum(axis=0) / counts.sum()
  apart = np.empty(len(clients))
  for first in range(0, len(clients), _BLOCK):  # All at once would take gigabytes.
    rows = clients[first : first + _BLOCK]
    shares = counts[rows] / sizes[rows, None]
    apart[first : first + _BLOCK] = np.abs(shares - whole).sum(axis=1)
  return float(apart.mean() / 2)
