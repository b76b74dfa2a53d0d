"""Properties of examples that may make results other than they seem."""

import dataclasses
import math
import weakref
from typing import NamedTuple

import numpy as np

from fesem_jax.core import feature_range
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import scale_checks
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION, REGRESSION, SEQUENCE
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import Rows, StoredRows, blocks

# Test examples that are training examples are told of from this share on. Tables of few
# values (ratings, counts, one-hot columns) have equal rows by chance, about as many
# between the splits as inside the training split. Rows are copies, and no such chance,
# if they are clearly more, or hold many different values, as images do, or if the
# different rows of a table mostly differ in a single column.
_LEAST_SHARE = 0.01
_MORE_THAN_INSIDE = 2.0
_MANY_VALUES = 16
_TELLING, _SOME_ROWS = 0.2, 10_000
# So few copies are no matter where they are few of the test rows, as in iris.
_FEW_COPIES, _MATTERS = 2, 0.1
# Of more examples, so many test examples are looked at, by a sum of so many values.
_MOST_COUNTED, _SAMPLE, _SUMMED = 10**6, 1000, 64
# A column that tells the classes of so many examples is no feature.
_TOLD = 5
_MOST_NUMBERS = 2**23
_ROUNDING = 1e-9  # Of the squared correlation of a column and its copy.
# More classes with fewer examples each may be numbers, as the targets of a regression.
_MANY_CLASSES, _FEW_OF_CLASS = 20, 3
# The features of test splits by the ids of both splits', while these live.
_looked_at: weakref.WeakValueDictionary[tuple[int, int], np.ndarray]
_looked_at = weakref.WeakValueDictionary()


class Repeated(NamedTuple):
  """How many examples are found twice, features and targets alike."""

  in_both: np.ndarray  # [R] numbers of the test examples that are training examples
  of_train: np.ndarray  # [R] numbers of these training examples, the first of equals
  test: int  # test examples
  inside: float  # share of the training examples that occur several times among these

  def in_words(self) -> str:
    """One sentence without its end."""
    share = len(self.in_both) / max(1, self.test)
    return (
      f'{len(self.in_both):,} of {self.test:,} test examples ({100 * share:.3g} %) are '
      f'also training examples'
    )


def repeated(train: FederatedData, test: FederatedData) -> Repeated:
  """Counts the test examples that are training examples, of any client."""
  of_train, of_test = (_hashes(s.x, s.y) for s in (train, test))
  order = np.argsort(of_train, kind='stable')
  of_train = of_train[order]
  twice = of_train[1:] == of_train[:-1]
  inside = np.mean(np.append(twice, False) | np.append(False, twice))
  places = np.searchsorted(of_train, of_test).clip(max=len(of_train) - 1)
  in_both = np.flatnonzero(of_train[places] == of_test)
  return Repeated(in_both, order[places[in_both]], len(of_test), float(inside))


def _hashes(x: Rows, y: Rows) -> np.ndarray:
  """[T] int64 of each example and its target; equal ones have equal numbers."""

  def of_rows(array: Rows) -> np.ndarray:
    hashes = [np.zeros(0, np.int64)]
    for _, rows in blocks(array):
      rows = np.ascontiguousarray(rows).reshape(len(rows), -1)
      as_bytes = rows.view(f'V{rows.dtype.itemsize * rows.shape[1]}').ravel().tolist()
      hashes.append(np.fromiter(map(hash, as_bytes), np.int64, len(rows)))
    return np.concatenate(hashes)

  y = np.asarray(y)
  of_targets = y.astype(np.int64) if y.ndim == 1 else of_rows(y)
  return of_rows(x) * 1_000_003 ^ of_targets


def _sampled(
  train: FederatedData, test: FederatedData
) -> tuple[FederatedData, FederatedData]:
  """Some test examples, and the training examples that may be equal to them."""
  rows = np.linspace(0, len(test.y) - 1, min(_SAMPLE, len(test.y))).astype(int)
  test = dataclasses.replace(test, x=test.x[rows], y=np.asarray(test.y)[rows])
  width = math.prod(train.x.shape[1:])
  columns = np.unique(np.linspace(0, width - 1, _SUMMED).astype(int))
  weights = np.random.default_rng(0).integers(1, 2**63, len(columns), np.uint64)

  def summed(x: Rows) -> np.ndarray:
    sums = [np.zeros(0, np.uint64)]
    for _, part in blocks(x):
      some = np.ascontiguousarray(part.reshape(len(part), width)[:, columns])
      sums.append(some.view(f'u{x.dtype.itemsize}').astype(np.uint64) @ weights)
    return np.concatenate(sums)

  like = np.flatnonzero(np.isin(summed(train.x), summed(test.x)))
  train = dataclasses.replace(train, x=train.x[like], y=np.asarray(train.y)[like])
  return train, test


def warn_of_features(pool: Pool, name: str, stay: bool = True) -> None:
  """Says once what about the features of a data set may spoil training.

  Unless they `stay` as they are, but are standardized, their range does not matter.
  """
  tokens = pool.x.dtype == np.uint8 and pool.x.ndim == 2 and pool.scale == 1
  if tokens or pool.is_text or pool.are_tokens or pool.task == SEQUENCE.name:
    return
  warn_of_many_classes(pool, name)
  warn_of_leaked_targets(pool, name)
  if stay:
    feature_range.warn_of_range(pool.x, pool.scale, f'{name}: x', pool.feature_names)
  if pool.test_x is not None:
    scale_checks.warn_of_splits(pool.x, pool.test_x, name)
    warn_of_unseen_values(pool, name)
  if pool.client is not None and pool.names is not None:
    scale_checks.warn_of_clients(pool.x, pool.client, pool.names, name)


def warn_of_many_classes(pool: Pool, name: str) -> None:
  """Says once that targets which train as classes look like numbers."""
  if pool.task != CLASSIFICATION.name:
    return
  classes, count = len(np.unique(pool.y)), len(pool.y)
  if _many_of_few(classes, count):
    warn_once(
      f'{name}: {classes:,} classes occur in {count:,} training examples. If y are '
      'numbers to predict, give `task=regression`.'
    )


def _many_of_few(classes: int, count: int) -> bool:
  """True if `classes` with `count` examples in all may be numbers to predict."""
  return classes > _MANY_CLASSES and count < _FEW_OF_CLASS * classes


def warn_of_leaked_targets(pool: Pool, name: str) -> None:
  """Says once that columns of x [T, F] hold the targets themselves.

  These are columns equal to a target of a regression, also in another unit, and those
  that are the same for all examples of a class and others for other classes.
  """
  if pool.x.ndim != 2 or isinstance(pool.x, StoredRows) or len(pool.y) < 2:
    return
  y, some = np.asarray(pool.y), slice(_SOME_ROWS)
  x, y = np.asarray(pool.x[some]), y[some]
  is_target = np.zeros(x.shape[1], bool)
  if pool.task == REGRESSION.name:
    x = x[: max(_TOLD, _MOST_NUMBERS // x.shape[1])]
    y, centered = y[: len(x)], x - x.mean(axis=0, dtype=np.float64)
    of_x = np.square(centered).sum(axis=0)
    for target in y.reshape(len(y), -1).T:
      own = target - target.mean(dtype=np.float64)
      explained, whole = (own @ centered) ** 2, of_x * (own @ own)
      is_target |= (explained > (1 - _ROUNDING) * whole) & (len(y) >= _TOLD)
  elif pool.task == CLASSIFICATION.name:
    order = np.argsort(y, kind='stable')
    x, y = x[order], y[order]
    alike = y[1:] == y[:-1]
    if len(y) < _TOLD * (1 + (~alike).sum()):
      return
    is_target = (x[1:] == x[:-1])[alike].all(axis=0)
    # A value that is rare may be of one class by chance.
    is_target &= np.minimum((x == x[0]).sum(axis=0), (x != x[0]).sum(axis=0)) >= _TOLD
  if is_target.any():
    places = np.flatnonzero(is_target).tolist()
    columns = [pool.feature_names[i] if pool.feature_names else str(i) for i in places]
    more = f' and {is_target.sum() - 3} more' if is_target.sum() > 3 else ''
    warn_once(
      f'{name}: x holds the targets, in column {", ".join(columns[:3])}'
      f'{more}, as a copy of y does; if so, leave it out.'
    )


def warn_of_unseen_values(pool: Pool, name: str) -> None:
  """Says once that test examples have values in columns that never change in training.

  These are columns of tables, e.g. of categories that occur in the test split alone.
  """
  if not pool.feature_names or isinstance(pool.x, StoredRows) or pool.test_x is None:
    return
  x, test = np.asarray(pool.x), np.asarray(pool.test_x)
  others = (test != x[:1]) & (x == x[:1]).all(axis=0)
  count = others.any(axis=1).sum()
  if count >= _LEAST_SHARE * len(test) and count:
    column = pool.feature_names[int(others.any(axis=0).argmax())]
    warn_once(
      f'{name}: {count:,} of {len(test):,} test examples differ from all training '
      f'examples in a column that these have alike, such as {column}; models do not '
      'learn what it means.'
    )


def warn_of_targets(train: FederatedData, test: FederatedData, name: str) -> None:
  """Says once that targets make figures other than they seem.

  That are test examples of classes without training examples, numbers far from 1, and
  targets that are all alike, which every model learns.
  """
  y, test_y = np.asarray(train.y), np.asarray(test.y)
  if train.task == CLASSIFICATION.name:
    present = np.zeros(train.num_classes, bool)
    present[y] = True
    unseen = ~present[test_y]
    if unseen.any() and not _many_of_few(present.sum(), len(y)):
      first = int(test_y[unseen.argmax()])
      called = train.info.class_names[first] if train.info.class_names else first
      warn_once(
        f'{name}: {unseen.sum():,} of {len(test_y):,} test examples are of classes '
        f'without training examples, such as {called}; no model can be right on them.'
      )
    alike = present.sum() == 1
  else:
    alike = bool((y == y[:1]).all())
  if train.task == REGRESSION.name and len(y):
    size = np.sqrt(np.square(y, dtype=np.float64).mean(axis=0)).max()
    if size > feature_range.MOST_SIZE:
      warn_once(
        f'{name}: targets go from {y.min():.4g} to {y.max():.4g}, far from 1; training '
        'may fail or stay far from them: standardize y.'
      )
  if alike and len(y) > 1:
    warn_once(
      f'{name}: all training examples have the same target; figures of models of it '
      'show nothing.'
    )


def _tell_apart(x: Rows) -> bool:
  """True if one column has so many values that rows are not equal by chance."""
  rows = np.asarray(x[:_SOME_ROWS])
  distinct = np.unique(rows.reshape(len(rows), -1), axis=0)
  most = max(len(np.unique(column)) for column in distinct.T)
  return most >= max(_MANY_VALUES, _TELLING * len(distinct))


def warn_of_repeated(
  train: FederatedData, test: FederatedData, name: str, mend: str = ''
) -> None:
  """Says once that test examples are also training examples, of any client.

  Large data sets that stay in a file are not read for it; `fesem-prepare-data` reads
  them. Of more than a million examples, a sample of the test split is looked at. Splits
  that have been looked at are not read again. `mend` is a sentence on what to do, where
  copies are known to be no chance.
  """
  pair = train.x, test.x
  if not all(isinstance(x, np.ndarray) for x in pair):
    return
  key = id(train.x), id(test.x)
  if _looked_at.get(key) is test.x:
    return
  _looked_at[key] = test.x
  if len(train.y) + len(test.y) > _MOST_COUNTED:
    train, test = _sampled(train, test)
    name += ', in a sample'
  if not len(train.y):
    return
  repeats = repeated(train, test)
  share = len(repeats.in_both) / max(1, repeats.test)
  if share < _LEAST_SHARE:
    return
  some = np.asarray(test.x[repeats.in_both[:100]])
  values = np.median([len(np.unique(row)) for row in some])
  few = len(repeats.in_both) <= _FEW_COPIES and share < _MATTERS
  if few and values < _MANY_VALUES:
    return
  copies = share > _MORE_THAN_INSIDE * repeats.inside or values >= _MANY_VALUES
  if copies or mend or np.array_equal(*pair) or _tell_apart(train.x):
    text = repeats.in_words()
    if mend:  # The same of each seed.
      part = f'about {100 * round(share, 1):.0f} % of the test examples'
      text = f'{part} are also training examples'
    warn_once(f'{name}: {text}; results on them do not show learning. {mend}'.strip())
