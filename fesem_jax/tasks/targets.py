"""Checked conversions to arrays; `where` names the argument in errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.errors import check

# Larger labels are a mistake, such as ids in place of labels.
MAX_CLASSES = 2**20


def labels(y: Any, where: str, num_classes: int | None) -> np.ndarray:
  """Labels of a classifier: [N] int32 in 0..L-1, where L is `num_classes` if known."""
  return _whole(y, where, 'labels', 1, 0, num_classes)


def tokens(y: Any, where: str, num_tokens: int | None) -> np.ndarray:
  """Next tokens of sequences: [N, S] int32 in 0..L-1, or -1 for no token."""
  return _whole(y, where, 'tokens', 2, -1, num_tokens)


def _whole(
  y: Any, where: str, kind: str, ndim: int, least: int, count: int | None
) -> np.ndarray:
  numbers = _numbers(y, where)
  most, limit = numbers.max(initial=0), count or MAX_CLASSES
  whole = numbers.ndim == ndim and (numbers == np.round(numbers)).all()
  whole = whole and numbers.min(initial=0) >= least
  check(whole, f'{where}: {kind} must be whole numbers from {least}; see task')
  check(most < limit, f'{where}: {most:.0f} is not in 0..{limit - 1}')
  return numbers.astype(np.int32)


def targets(y: Any, where: str, num_targets: int | None) -> np.ndarray:
  """Targets of a regression: [N, D] float32, of [N] or [N, D] finite numbers."""
  return finite_float32(_columns(y, where, num_targets), where)


def label_sets(y: Any, where: str, num_labels: int | None) -> np.ndarray:
  """Labels of each example: [N, L] int32 zeros and ones, of [N] or [N, L] numbers."""
  rows = _columns(y, where, num_labels)
  binary = np.isin(rows, (0, 1)).all()
  check(binary, f'{where}: multilabel needs rows of zeros and ones')
  return rows.astype(np.int32)


def _columns(y: Any, where: str, count: int | None) -> np.ndarray:
  rows = _numbers(y, where)
  rows = rows[:, None] if rows.ndim == 1 else rows
  valid = rows.ndim == 2 and 0 < rows.shape[1] == (count or rows.shape[1])
  check(valid, f'{where}: shape {rows.shape}; expected [N, {count or "D"}]')
  return rows


def _numbers(values: Any, where: str) -> np.ndarray:
  array = np.asarray(values)
  check(not array.size or array.dtype.kind in 'biuf', f'{where}: must be numbers')
  return array.astype(np.float64)


def finite_float32(x: Any, where: str) -> np.ndarray:
  """Numbers as float32; raises `UserError` unless all values are finite."""
  with np.errstate(over='ignore'):
    floats = np.asarray(x).astype(np.float32)
  check(np.isfinite(floats).all(), f'{where}: values are not finite float32 numbers')
  return floats


def has_channels_first(shape: Sequence[int]) -> bool:
  """True if examples of a shape look like images [C, H, W], as PyTorch has them."""
  if len(shape) != 3 or shape[0] not in (1, 2, 3, 4) or shape[2] < 5:
    return False
  return shape[1] == shape[2] or min(shape[1:]) >= 16
