"""The range of features as models see them, and what about it may spoil training.

Local SGD with the usual rates assumes features near 1. The thresholds are so far from
this that common data stay below them: standardized columns have a root mean square of
1, however long their tails are; normalized images, embeddings, one-hot columns and
counts of words have less than 10; features of 10 make the curvature of a linear layer
100 times that of standardized ones, so that a learning rate of 0.1 diverges. Raw
columns (ages, years, prices) and pixels up to 255 lie above. No feature at all beyond
0.01 is what pixels in 0..1 become if they are divided by 255 (0.004).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.utils.display import listed_and_counted
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import Rows, blocks

MOST_SIZE = 10.0  # Root mean square of a feature.
LEAST_SIZE = 0.01  # Of the largest absolute value of all.
# The same of images of bytes, whose scale is for 0..255: those of 0..16 reach 0.06.
_LEAST_OF_BYTES = 0.1
_MOST_WHOLE = 2**24  # Float32 holds all whole numbers up to here.
_NAMED = 3  # Columns that a message names.


class Range(NamedTuple):
  """The range of each of F features, multiplied by the scale."""

  least: np.ndarray  # [F] float64
  most: np.ndarray  # [F] float64
  size: np.ndarray  # [F] float64, the root mean square

  def in_words(self) -> str:
    """From which number to which all features go."""
    return f'from {self.least.min():.4g} to {self.most.max():.4g}'


def of_features(x: Rows, scale: float) -> Range:
  """The range of x [T, ...] in numbers of F features, times `scale`."""
  width = math.prod(x.shape[1:])
  least, most = np.full(width, np.inf), np.full(width, -np.inf)
  squares = np.zeros(width)
  for _, rows in blocks(x):
    rows = rows.reshape(len(rows), width)
    least = np.minimum(least, rows.min(axis=0))
    most = np.maximum(most, rows.max(axis=0))
    squares += np.einsum('tf,tf->f', rows, rows, dtype=np.float64)
  size = np.sqrt(squares / max(1, len(x)))
  return Range(least * scale, most * scale, size * scale)


def warn_of_range(
  x: Rows, scale: float, where: str, names: Sequence[str] | None = None
) -> None:
  """Says once where the features x [T, ...] of a data set are far from 1.

  `where` is the source file or argument of x, and `names` are those of its columns.
  """
  if not len(x) or 0 in x.shape:
    return
  if x.dtype == np.uint8 and 255 * scale <= MOST_SIZE:
    # Images: the first block says enough.
    if not any(rows.max() * scale >= _LEAST_OF_BYTES for _, rows in blocks(x)):
      _warn_of_small(float(max(rows.max() for _, rows in blocks(x))) * scale, where)
    return
  ranges = of_features(x, scale)
  largest = float(max(ranges.most.max(), -ranges.least.min()))
  if largest < LEAST_SIZE:
    _warn_of_small(largest, where)
  wide = np.flatnonzero(ranges.size > MOST_SIZE)
  if not len(wide):
    return
  if x.ndim > 2:
    pixels = 100 < largest <= 255 and scale == 1
    what = f'has values {ranges.in_words()}'
    mend = f'give scale, e.g. 1/{255 if pixels else f"{largest:.6g}"}'
  else:
    columns = [
      f'column {names[i] if names else i} {ranges.least[i]:.4g} to {ranges.most[i]:.4g}'
      for i in wide.tolist()
    ]
    what = f'has in {listed_and_counted(columns, _NAMED)}'
    mend = 'standardize the columns'
    if ranges.least.min() >= 0 and _are_whole(x):
      mend += ', or give scale: 1/255 for pixels, 1 for tokens'
  warn_once(f'{where} {what}, far from 1; training may fail or stay at chance: {mend}.')


def _are_whole(x: Rows) -> bool:
  return all((rows == np.round(rows)).all() for _, rows in blocks(x))


def _warn_of_small(largest: float, where: str) -> None:
  if largest > 0:
    warn_once(
      f'{where} has no value beyond {largest:.2g} after multiplication by its scale; '
      'models learn little from it: check whether it was divided twice, and give scale.'
    )


def warn_of_rounding(
  x: np.ndarray, where: str, names: Sequence[str] | None = None
) -> None:
  """Says once that x [T, ...] holds numbers that float32 cannot tell apart.

  These are whole numbers beyond 2^24, and columns of a table whose values vary so
  little about a large one that rounding takes 1 % of their deviation, as times of an
  hour in seconds since 1970. `names` are those of the columns.
  """
  if x.dtype.kind not in 'iuf' or x.dtype.itemsize < 4 or x.dtype == np.float32:
    return
  if not x.size:
    return
  beyond = max(x.max(), -float(x.min())) > _MOST_WHOLE
  large = x[np.abs(x) > _MOST_WHOLE] if beyond else x[:0]
  # Floats are whole on purpose if all are; beyond 2^53 they must be.
  odd = (large != np.round(large)).any() or np.abs(large).max(initial=0) > 2**53
  whole = x.dtype.kind != 'f' or not odd
  if whole and (large.astype(np.float32).astype(large.dtype) != large).any():
    warn_once(
      f'{where} holds whole numbers beyond 2^24, up to {float(x.max()):.4g}, which '
      'become float32 and are rounded; subtract an offset, or number them from 0.'
    )
  elif x.ndim == 2 and x.dtype.kind == 'f':
    with np.errstate(all='ignore'):  # Values that are not finite are refused later.
      deviation = x.std(axis=0)
      close = np.flatnonzero(np.abs(x).max(axis=0) * 2.0**-24 > 0.01 * deviation)
      rounded = np.abs(x[:, close].astype(np.float32) - x[:, close]).max(axis=0)
      differs = x.min(axis=0) < x.max(axis=0)
      lost = close[differs[close] & (rounded > 0.01 * deviation[close])]
    if len(lost):
      columns = listed_and_counted(
        (names[i] if names else i for i in lost.tolist()), _NAMED
      )
      warn_once(
        f'{where} has in column {columns} values that become float32 and are so '
        'close together that rounding blurs them; subtract an offset.'
      )
