"""A table of what two splits hold, to look at before training on them."""

from typing import TYPE_CHECKING

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import TASKS

if TYPE_CHECKING:
  import pandas


def describe(train: FederatedData, test: FederatedData) -> 'pandas.DataFrame':
  """Describes two splits of the same clients, on the host.

  Features are those that models see, with `scale`. Equal examples have equal features
  and targets, of whatever client.

  Returns:
    A data frame with the columns `train` and `test` and the rows clients, examples,
    smallest, median and largest client, classes, largest class (its share), features
    and targets (least, most, root mean square), duplicates (share of the examples that
    occur several times) and in train (share of the examples that are training
    examples).
  """
  import pandas

  columns, in_train = {}, None
  for name, split in (('train', train), ('test', test)):
    pairs = zip(np.asarray(split.x), np.asarray(split.y), strict=True)
    examples = pandas.Series([hash((x.tobytes(), y.tobytes())) for x, y in pairs])
    in_train = examples if in_train is None else in_train
    columns[name] = _column(split)
    columns[name]['duplicates'] = examples.duplicated(keep=False).mean()
    columns[name]['in train'] = examples.isin(in_train).mean()
  return pandas.DataFrame(columns)


def _column(split: FederatedData) -> dict[str, float]:
  sizes, y = np.asarray(split.sizes()), np.asarray(split.y)
  rows: dict[str, float] = {'clients': len(sizes), 'examples': len(y)}
  rows |= {'smallest client': sizes.min(), 'median client': float(np.median(sizes))}
  rows['largest client'] = sizes.max()
  if TASKS[split.task].has_classes:
    counts = np.unique(y[y >= 0], return_counts=True)[1]
    rows |= {'classes': len(counts), 'largest class': counts.max() / counts.sum()}
  for name, array, scale in (('features', split.x, split.scale), ('targets', y, 1.0)):
    # Rows of images at a time, as their squares take eight times their memory.
    square = np.mean([np.square(row, dtype=np.float64).mean() for row in array])
    values = {'least': array.min(), 'most': array.max()}
    values['root mean square'] = np.sqrt(square)
    rows |= {f'{name}, {key}': float(x) * scale for key, x in values.items()}
  return rows
