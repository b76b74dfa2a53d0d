"""Checked conversions of parsed values to arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.errors import check

# Larger labels are a mistake, such as ids in place of labels.
MAX_CLASSES = 2**20


def numbers(values: Any, where: str) -> np.ndarray:
  """Parsed JSON as a float64 array; `UserError` if it holds anything but numbers."""
  array = np.asarray(values)
  check(not array.size or array.dtype.kind in 'biuf', f'{where}: must be numbers')
  return array.astype(np.float64)


def labels(y: Any, where: str, num_classes: int | None) -> np.ndarray:
  """Labels of a classifier: [N] int32 in 0..L-1, where L is `num_classes` if known.

  `y` has one whole number for each example, of any dtype. Raises `UserError`, naming
  the file or argument `where`, if they are anything else.
  """
  numbered = numbers(y, where)
  whole = numbered.ndim == 1 and _are_whole(numbered, 0)
  check(
    whole, f'{where}: labels must be whole numbers from 0; give task=... for others'
  )
  return _below(numbered, where, num_classes)


def _are_whole(numbered: np.ndarray, least: int) -> bool:
  """True if all numbers are whole and at least `least`."""
  whole = bool((numbered == np.round(numbered)).all())
  return whole and numbered.min(initial=0) >= least


def _below(numbered: np.ndarray, where: str, count: int | None) -> np.ndarray:
  """Whole numbers as int32; raises `UserError` unless they are below `count`."""
  most = numbered.max(initial=0)
  limit = count or MAX_CLASSES
  check(most < limit, f'{where}: {most:.0f} is not in 0..{limit - 1}')
  return numbered.astype(np.int32)


def _columns(numbered: np.ndarray, where: str, count: int | None) -> np.ndarray:
  """[N, D] numbers; raises `UserError` unless D is `count`, if that is known."""
  rows = numbered[:, None] if numbered.ndim == 1 else numbered
  right = (
    rows.ndim == 2 and rows.shape[1] in (count or rows.shape[1],) and rows.shape[1]
  )
  check(right, f'{where}: shape {numbered.shape}; expected [N, {count or "D"}]')
  return rows


def targets(y: Any, where: str, num_targets: int | None) -> np.ndarray:
  """Targets of a regression: [N, D] float32, where D is `num_targets` if known.

  `y` has [N] or [N, D] numbers, of any dtype. Raises `UserError`, naming the file or
  argument `where`, if they are anything else, or not finite.
  """
  return weights(_columns(numbers(y, where), where, num_targets), where)


def label_sets(y: Any, where: str, num_labels: int | None) -> np.ndarray:
  """Labels of each example: [N, L] int32, 1 for those it has, where L may be known.

  `y` has [N, L] zeros and ones, or [N] of a single label, of any dtype. Raises
  `UserError`, naming the file or argument `where`, if they are anything else.
  """
  rows = _columns(numbers(y, where), where, num_labels)
  check(
    np.isin(rows, (0, 1)).all(), f'{where}: multilabel needs rows of zeros and ones'
  )
  return rows.astype(np.int32)


def tokens(y: Any, where: str, num_tokens: int | None) -> np.ndarray:
  """Next tokens of sequences: [N, S] int32 in 0..L-1, or -1 for no token.

  `y` has [N, S] whole numbers, of any dtype; L is `num_tokens` if known. Raises
  `UserError`, naming the file or argument `where`, if they are anything else.
  """
  numbered = numbers(y, where)
  whole = numbered.ndim == 2 and _are_whole(numbered, -1)
  check(whole, f'{where}: sequences need [N, S] whole numbers from 0, or -1 for none')
  return _below(numbered, where, num_tokens)


def weights(x: Any, where: str) -> np.ndarray:
  """Numbers as float32; raises `UserError` unless all values are finite."""
  with np.errstate(over='ignore'):
    floats = np.asarray(x).astype(np.float32)
  check(np.isfinite(floats).all(), f'{where}: values are not finite float32 numbers')
  return floats


def has_channels_first(shape: Sequence[int]) -> bool:
  """True if examples of a shape look like images [C, H, W], as PyTorch has them.

  The first of three axes is that of gray or color images, with or without
  transparency, and the last is not, and rows and columns are as many, or too many for
  channels.
  """
  if len(shape) != 3 or shape[0] not in (1, 2, 3, 4) or shape[2] < 5:
    return False
  return shape[1] == shape[2] or min(shape[1:]) >= 16
