"""Checks that examples of a data set share one scale: splits, and natural clients."""

import math

import numpy as np

from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import Rows, StoredRows, blocks

# The size of one part over that of another, or the reverse.
_MOST_RATIO = 10.0
# The same of the spread of most columns, as of pixels in 0..1 and standardized ones.
_MOST_SPREAD = 2.5
# Share of values below 0 in one part where the other has none, of so many values and
# columns: a temperature may be so by chance, all columns of a client may not.
_LEAST_NEGATIVE, _FEW_VALUES, _FEW_COLUMNS = 0.2, 200, 4
_FEW_ROWS = 20  # Of a split whose spread is compared, and read of each client.


def warn_of_splits(x: Rows, test_x: Rows, where: str) -> None:
  """Says once that test examples [T, ...] are on another scale than training ones."""
  train, test = (_sample(rows) for rows in (x, test_x))
  if not train.size or not test.size:
    return
  sizes = [float(np.abs(rows).mean()) for rows in (train, test)]
  if max(sizes) > _MOST_RATIO * min(sizes):
    warn_once(
      f'{where}: test examples have a mean absolute value of {sizes[1]:.3g}, training '
      f'examples of {sizes[0]:.3g}; bring both to one scale.'
    )
    return
  spread = [rows.std(axis=0) for rows in (train, test)]
  varies = (spread[0] > 0) & (spread[1] > 0)
  ratio = 1.0
  if varies.any() and min(len(train), len(test)) >= _FEW_ROWS:
    ratio = float(np.median(spread[1][varies] / spread[0][varies]))
  negative = [_negative(rows) for rows in (train, test)]
  signs = min(negative) == 0 and max(negative) > _LEAST_NEGATIVE
  enough = min(train.size, test.size) >= _FEW_VALUES
  if max(ratio, 1 / ratio) > _MOST_SPREAD or (
    signs and enough and train.shape[1] >= _FEW_COLUMNS
  ):
    spans = ' and '.join(
      f'{rows.min():.3g} to {rows.max():.3g} with a standard deviation of '
      f'{rows.std():.3g} in {split} examples'
      for split, rows in (('training', train), ('test', test))
    )
    warn_once(
      f'{where}: values go from {spans}, as if one split alone was standardized; bring '
      'both to one scale.'
    )


def warn_of_clients(x: Rows, client: np.ndarray, names: np.ndarray, where: str) -> None:
  """Says once that some natural clients are on another scale than most.

  `client` [T] is the client of each row of x [T, ...], `names` [M] are those of all.
  Large data that stay in a file are not read for it.
  """
  if isinstance(x, StoredRows) or len(names) < 2 or not x.size:
    return
  order = np.argsort(client, kind='stable')
  sizes = np.bincount(client, minlength=len(names))
  place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  step = np.repeat(-(-sizes // _FEW_ROWS), sizes)  # Spread over those of a client.
  order = order[place % np.maximum(1, step) == 0]
  own = client[order]
  means, negative = np.zeros(len(order)), np.zeros(len(order))
  for first, rows in blocks(x[order]):
    flat = rows.reshape(len(rows), -1)
    means[first : first + len(rows)] = np.abs(flat, dtype=np.float64).mean(axis=1)
    negative[first : first + len(rows)] = (flat < 0).mean(axis=1)
  read = np.bincount(own, minlength=len(names)).clip(1)
  size = np.zeros(len(names))  # The median of a client's rows: few may be far.
  of_own = np.lexsort((means, own))
  ends = np.cumsum(np.bincount(own, minlength=len(names)))
  there = np.bincount(own, minlength=len(names)) > 0
  size[there] = means[of_own][((ends + np.r_[0, ends[:-1]]) // 2)[there]]
  below = np.bincount(own, negative, len(names)) / read
  usual = float(np.median(size[size > 0])) if size.any() else 0.0
  odd = (size > _MOST_RATIO * usual) | ((size > 0) & (size * _MOST_RATIO < usual))
  if odd.any():
    first = int(odd.argmax())
    warn_once(
      f'{where}: features of {odd.sum():,} of {len(names):,} clients are on another '
      f'scale, as of {names[first]}, with a mean absolute value of {size[first]:.3g}, '
      f'{usual:.3g} of most; bring all clients to one scale.'
    )
    return
  width = math.prod(x.shape[1:])
  enough = read * width >= _FEW_VALUES
  some, none = enough & (below > _LEAST_NEGATIVE), enough & (below == 0)
  if some.any() and none.any() and width >= _FEW_COLUMNS:
    warn_once(
      f'{where}: {some.sum():,} clients, such as {names[some.argmax()]}, have many '
      f'features below 0 and {none.sum():,}, such as {names[none.argmax()]}, none, as '
      'if some alone were standardized; bring all clients to one scale.'
    )


def _negative(rows: np.ndarray) -> float:
  """The share of values below 0."""
  return float((rows < 0).mean())


def _sample(x: Rows) -> np.ndarray:
  """[n, F] float64, up to 1,000 rows of each split, spread over all of them."""
  if not len(x):
    return np.zeros((0, 1))
  rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), 1000)).astype(int))
  return np.asarray(x[rows], np.float64).reshape(len(rows), -1)
