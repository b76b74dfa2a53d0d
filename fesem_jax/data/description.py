"""A table of what two splits hold, to look at before training on them."""

from typing import TYPE_CHECKING

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import TASKS

if TYPE_CHECKING:
  import pandas

_MISSING = (-99, -999, -9999, -99999, 999, 9999, 99999)  # Marks for missing values.


def describe(train: FederatedData, test: FederatedData) -> 'pandas.DataFrame':
  """Describes two splits of the same clients, on the host.

  Features are those that models see, with `scale`. Equal examples have equal features
  and targets, of whatever client.

  Returns:
    A data frame with the columns `train` and `test` and the rows clients, examples,
    smallest, median and largest client, classes, largest class (its share), features
    and targets (least, most, root mean square), duplicates (share of the examples that
    occur several times), in train (share of the examples that are training examples),
    and, for each number such as -999 that the features have, constant -999 (its share).
  """
  import pandas

  hashes = [_hashes(split) for split in (train, test)]
  columns = {
    name: _column(split) | _repeats(of_split, hashes[0])
    for name, split, of_split in zip(
      ('train', 'test'), (train, test), hashes, strict=True
    )
  }
  frame = pandas.DataFrame(columns)
  constants = frame.index.str.startswith('constant')
  return frame[~constants | (frame.max(axis=1) > 0)]


def _column(split: FederatedData) -> dict[str, float]:
  sizes, y = np.asarray(split.sizes()), np.asarray(split.y)
  rows: dict[str, float] = {'clients': len(sizes), 'examples': len(y)}
  rows |= {'smallest client': sizes.min(), 'median client': float(np.median(sizes))}
  rows['largest client'] = sizes.max()
  if TASKS[split.task].has_classes:
    counts = np.unique(y[y >= 0], return_counts=True)[1]
    rows |= {'classes': len(counts), 'largest class': counts.max() / counts.sum()}
  rows |= _range('features', split.x, split.scale) | _range('targets', y, 1.0)
  x = np.asarray(split.x)
  may_be = x.dtype != np.uint8 and x.size
  shares = {n: float((x == n).mean()) if may_be else 0.0 for n in _MISSING}
  return rows | {f'constant {number}': share for number, share in shares.items()}


def _range(name: str, array: np.ndarray, scale: float) -> dict[str, float]:
  values = {'least': np.inf, 'most': -np.inf, 'root mean square': 0.0}
  if array.size:
    # Rows of images at a time, as their squares take eight times their memory.
    squares = [np.square(x, dtype=np.float64).mean() for x in array]
    size = np.sqrt(np.mean(squares))
    values = {'least': array.min(), 'most': array.max(), 'root mean square': size}
  return {f'{name}, {key}': float(value) * scale for key, value in values.items()}


def _repeats(hashes: np.ndarray, of_train: np.ndarray) -> dict[str, float]:
  _, first, counts = np.unique(hashes, return_inverse=True, return_counts=True)
  twice = float((counts[first] > 1).mean()) if len(hashes) else 0.0
  inside = float(np.isin(hashes, of_train).mean()) if len(hashes) else 0.0
  return {'duplicates': twice, 'in train': inside}


def _hashes(split: FederatedData) -> np.ndarray:
  """[T] int64 of each example and its target; equal ones have equal numbers."""
  pairs = zip(np.asarray(split.x), np.asarray(split.y), strict=True)
  return np.array([hash((x.tobytes(), y.tobytes())) for x, y in pairs], np.int64)
