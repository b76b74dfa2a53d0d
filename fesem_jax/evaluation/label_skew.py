"""The label skew between clients."""

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import TASKS

_BLOCK = 2**15  # Clients that are looked at at once.


def label_counts(data: FederatedData) -> np.ndarray:
  """[M, L] int64 examples of each class on each client, on the host.

  Of sequences these are the tokens to be predicted; of a regression, which has no
  classes, L is 1.
  """
  sizes = np.asarray(data.sizes())
  if not TASKS[data.task].has_classes:
    return sizes.astype(np.int64)[:, None]
  client, y = np.repeat(np.arange(len(sizes)), sizes), np.asarray(data.compact(data.y))
  if y.ndim > 1:  # Tokens of sequences, some of which are to be left out.
    client, y = np.repeat(client, y.shape[1]), y.ravel()
    client, y = client[y >= 0], y[y >= 0]
  counts = np.bincount(
    client * data.num_classes + y, minlength=len(sizes) * data.num_classes
  )
  return counts.reshape(len(sizes), data.num_classes)


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
