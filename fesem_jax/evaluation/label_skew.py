"""The label skew between clients."""

import numpy as np

_BLOCK = 2**15  # Clients that are looked at at once.


def label_skew(counts: np.ndarray) -> float:
  """Mean total-variation distance of clients' label distributions to all data's.

  0 if all clients have the same mixture of classes, towards 1 - 1 / L if each has a
  single one of L equally frequent classes. Clients weigh alike; those without examples
  are left out; NaN if none has any, as sequences without tokens. `counts` [M, L] are
  examples of each class on each client.
  """
  sizes = counts.sum(axis=1)
  kept = np.flatnonzero(sizes > 0)
  if not len(kept):
    return float('nan')
  whole = counts.sum(axis=0) / counts.sum()
  apart = np.empty(len(kept))
  for first in range(0, len(kept), _BLOCK):  # All at once would take gigabytes.
    rows = kept[first : first + _BLOCK]
    shares = counts[rows] / sizes[rows, None]
    apart[first : first + _BLOCK] = np.abs(shares - whole).sum(axis=1)
  return float(apart.mean() / 2)
