"""Checked conversions of parsed values to arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError

# Larger labels are a mistake, such as ids in place of labels.
MAX_CLASSES = 2**20


def numbers(values: Any, where: str, what: str) -> np.ndarray:
  """Parsed JSON as a float64 array.

  Raises `UserError` if it holds anything but numbers, or rows of different lengths.
  """
  try:
    array = np.asarray(values)
  except ValueError as e:
    raise UserError(f'{where}: {what} of different lengths.') from e
  if array.size and array.dtype.kind not in 'biuf':
    first = printable(str(array.reshape(-1)[0]))
    mend = 'number them from 0' if what == 'labels' else 'turn them into numbers first'
    raise UserError(f'{where}: {what} that are not numbers, such as {first!r}; {mend}.')
  return array.astype(np.float64)


def labels(y: Any, where: str, num_classes: int | None) -> np.ndarray:
  """Labels of a classifier: [N] int32 in 0..L-1, where L is `num_classes` if known.

  `y` has one whole number for each example, of any dtype. Raises `UserError`, naming
  the file or argument `where`, if they are anything else, such as targets of a
  regression or several labels per example.
  """
  numbered = numbers(y, where, 'labels')
  if numbered.ndim != 1 or not _are_whole(numbered, 0):
    raise UserError(
      f'{where}: labels must be whole numbers from 0, one for each example'
      f'{_what_they_are(numbered)}; for other targets choose `task=multilabel`, '
      '`task=regression` or `task=sequence`.'
    )
  return _below(numbered, where, 'label', num_classes)


def _what_they_are(numbered: np.ndarray) -> str:
  """Description of labels that are not as they must be; '' if that is not known."""
  least = numbered.min(initial=0)
  if numbered.ndim == 1 and -np.inf < least < 0 and _are_whole(numbered, least):
    return f' (the least is {least:.0f}: number the classes from 0)'
  one_hot = numbered.ndim == 2 and np.isin(numbered, (0, 1)).all()
  if one_hot and (numbered.sum(axis=1) == 1).all():
    return ' (these are one-hot rows: give their `argmax`)'
  return ''


def _are_whole(numbered: np.ndarray, least: int) -> bool:
  """True if all numbers are whole and at least `least`."""
  whole = bool((numbered == np.round(numbered)).all())
  return whole and numbered.min(initial=0) >= least


def _below(
  numbered: np.ndarray, where: str, what: str, count: int | None
) -> np.ndarray:
  """Whole numbers as int32; raises `UserError` unless they are below `count`."""
  most = count or MAX_CLASSES
  if numbered.max(initial=0) >= most:
    raise UserError(f'{where}: {what} {numbered.max():.0f} is not in 0..{most - 1}.')
  return numbered.astype(np.int32)


def targets(y: Any, where: str, num_targets: int | None) -> np.ndarray:
  """Targets of a regression: [N, D] float32, where D is `num_targets` if known.

  `y` has [N] or [N, D] numbers, of any dtype. Raises `UserError`, naming the file or
  argument `where`, if they are anything else, or not finite.
  """
  numbered = numbers(y, where, 'targets')
  if numbered.ndim == 1:
    numbered = numbered[:, None]
  if numbered.ndim != 2 or not numbered.shape[1]:
    raise UserError(
      f'{where}: targets have shape {numbered.shape}; a regression needs one number '
      'for each example, or a row of numbers.'
    )
  with np.errstate(over='ignore'):
    floats = numbered.astype(np.float32)
  if not np.isfinite(floats).all():
    raise UserError(f'{where}: targets that are not finite float32 numbers.')
  if num_targets is not None and floats.shape[1] != num_targets:
    raise UserError(
      f'{where}: {floats.shape[1]} targets an example; there must be {num_targets}.'
    )
  return floats


def label_sets(y: Any, where: str, num_labels: int | None) -> np.ndarray:
  """Labels of each example: [N, L] int32, 1 for those it has, where L may be known.

  `y` has [N, L] zeros and ones, or [N] of a single label, of any dtype. Raises
  `UserError`, naming the file or argument `where`, if they are anything else.
  """
  numbered = numbers(y, where, 'labels')
  if numbered.ndim == 1:
    numbered = numbered[:, None]
  if numbered.ndim != 2 or not numbered.shape[1] or not np.isin(numbered, (0, 1)).all():
    raise UserError(
      f'{where}: with `task=multilabel`, each example needs a row of zeros and ones, '
      'one for each label, or a single one.'
    )
  if num_labels is not None and numbered.shape[1] != num_labels:
    raise UserError(
      f'{where}: {numbered.shape[1]} labels an example; there must be {num_labels}.'
    )
  return numbered.astype(np.int32)


def tokens(y: Any, where: str, num_tokens: int | None) -> np.ndarray:
  """Next tokens of sequences: [N, S] int32 in 0..L-1, or -1 for no token.

  `y` has [N, S] whole numbers, of any dtype; L is `num_tokens` if known. Raises
  `UserError`, naming the file or argument `where`, if they are anything else.
  """
  numbered = numbers(y, where, 'tokens')
  if numbered.ndim != 2 or not _are_whole(numbered, -1):
    raise UserError(
      f'{where}: the next tokens of sequences must be whole numbers from 0, or -1 '
      'where there is none, one for each position of each sequence, of shape [N, S].'
    )
  return _below(numbered, where, 'token', num_tokens)


def weights(x: Any, where: str) -> np.ndarray:
  """An array of a model as float32; raises `UserError` unless all values are finite."""
  array = np.asarray(x)
  if array.dtype.kind in 'fiu':
    with np.errstate(over='ignore'):
      floats = array.astype(np.float32)
    if np.isfinite(floats).all():
      return floats
  raise UserError(f'{where} holds values that are not finite float32 numbers.')


def has_channels_first(shape: Sequence[int]) -> bool:
  """True if examples of a shape look like images [C, H, W], as PyTorch has them.

  The first of three axes is that of gray or color images, with or without
  transparency, and the last is not, and rows and columns are as many, or too many for
  channels.
  """
  if len(shape) != 3 or shape[0] not in (1, 2, 3, 4) or shape[2] < 5:
    return False
  return shape[1] == shape[2] or min(shape[1:]) >= 16


def to_bytes(pixels: np.ndarray, where: str) -> np.ndarray:
  """Pixels in [0, 1] as bytes, multiplied by 255."""
  if not (pixels.min(initial=0) >= 0 and pixels.max(initial=1) <= 1):
    raise UserError(
      f'{where}: pixels from {pixels.min():g} to {pixels.max():g}; they must lie '
      'between 0 and 1.'
    )
  return np.round(pixels * 255).astype(np.uint8)
