"""A table of what two splits hold, to look at before training on them."""

from typing import TYPE_CHECKING

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import TASKS
from fesem_jax.utils.stored_rows import Rows, blocks

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
  found = dict.fromkeys(_MISSING, 0)
  for _, x in blocks(split.x):
    if x.dtype != np.uint8:
      found = {number: n + int((x == number).sum()) for number, n in found.items()}
  size = max(1, int(np.prod(split.x.shape)))
  return rows | {f'constant {number}': n / size for number, n in found.items()}


def _range(name: str, array: Rows, scale: float) -> dict[str, float]:
  least, most, square = np.inf, -np.inf, 0.0
  for _, rows in blocks(array):
    if rows.size:
      least, most = min(least, rows.min()), max(most, rows.max())
      square += float(np.square(rows, dtype=np.float64).sum())
  size = np.sqrt(square / max(1, int(np.prod(array.shape))))
  values = {'least': least, 'most': most, 'root mean square': size}
  return {f'{name}, {key}': float(value) * scale for key, value in values.items()}


def _repeats(hashes: np.ndarray, of_train: np.ndarray) -> dict[str, float]:
  _, first, counts = np.unique(hashes, return_inverse=True, return_counts=True)
  twice = float((counts[first] > 1).mean()) if len(hashes) else 0.0
  inside = float(np.isin(hashes, of_train).mean()) if len(hashes) else 0.0
  return {'duplicates': twice, 'in train': inside}


def _hashes(split: FederatedData) -> np.ndarray:
  """[T] int64 of each example and its target; equal ones have equal numbers."""
  y, hashes = np.asarray(split.y), [np.zeros(0, np.int64)]
  for first, x in blocks(split.x):
    pairs = zip(x, y[first : first + len(x)], strict=True)
    hashes.append(np.array([hash((a.tobytes(), b.tobytes())) for a, b in pairs]))
  return np.concatenate(hashes).astype(np.int64)
