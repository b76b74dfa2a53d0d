"""Checks of what a user says about a split: sizes, ids, targets and the scale."""

import numbers
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.display import listed_and_counted
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import Rows

_NAMED = 5  # Classes that a message names.


def sizes(given: Any, num_examples: int) -> np.ndarray:
  """[M] int64 numbers of examples of each client.

  Raises `UserError` unless they are whole numbers from 0 that sum to `num_examples`.
  """
  try:
    counts = np.asarray(given)
  except ValueError:
    counts = np.asarray(None)
  if counts.ndim != 1 or counts.dtype.kind not in 'biuf':
    raise UserError('`sizes` must be a list: the number of examples of each client.')
  wrong = np.flatnonzero(~((counts >= 0) & (counts == np.floor(counts))))
  if len(wrong):
    raise UserError(
      f'`sizes`: client {wrong[0]} has {counts[wrong[0]]} examples; give a whole '
      'number from 0.'
    )
  if counts.sum() != num_examples:
    raise UserError(
      f'`sizes` sum to {counts.sum():g}, but `x` has {num_examples} examples; give the '
      'number of examples of each client, in the order of the rows.'
    )
  return counts.astype(np.int64)


def client_ids(given: Any, num_clients: int) -> np.ndarray:
  """[M] int32 ids; raises `UserError` unless they are distinct and from 0."""
  ids = np.asarray(given)
  if ids.shape != (num_clients,) or ids.dtype.kind not in 'iu':
    raise UserError(
      f'`client_ids` must be {num_clients} whole numbers, one for each client of '
      '`sizes`.'
    )
  wide = ids.min(initial=0) < 0 or ids.max(initial=0) >= 2**31
  if wide or len(np.unique(ids)) < num_clients:
    raise UserError(
      '`client_ids` must be distinct numbers from 0 to 2^31 - 1, as random keys are '
      'folded from them; leave it out to number the clients.'
    )
  return ids.astype(np.int32)


def scale(given: Any) -> float:
  """The factor of features; raises `UserError` unless a float32 holds it."""
  limits = np.finfo(np.float32)
  known = np.asarray(given)
  number = isinstance(given, numbers.Real) or (
    known.size == 1 and known.dtype.kind in 'iuf'
  )
  value = float(known.reshape(())) if number else float('nan')
  if not float(limits.tiny) <= value <= float(limits.max):
    raise UserError(
      f'{argument("scale", given)} must be a positive 32-bit number, e.g. 1/255 for '
      'pixels.'
    )
  return value


def num_outputs(given: Any) -> int | None:
  """L if it is given; raises `UserError` unless it is a whole number from 1."""
  if given is None:
    return None
  if isinstance(given, str) or np.ndim(given) or not given >= 1 or given != int(given):
    raise UserError(
      f'{argument("num_classes", given)} must be a whole number from 1, or be left out.'
    )
  return int(given)


def warn_of_gaps(y: np.ndarray, num_classes: int, task: str, where: str) -> None:
  """Says once which classes of labels y [T] do not occur, if L was read from these.

  `task` is a key of `tasks.TASKS`, and `where` the source file or argument of y.
  """
  if task != CLASSIFICATION.name or not len(y):
    return
  absent = np.setdiff1d(np.arange(num_classes), y)
  if len(absent):
    named = listed_and_counted(absent, _NAMED)
    warn_once(
      f'{where} has labels up to {num_classes - 1}, of which {named} do not '
      f'occur: models have {num_classes:,} outputs. Number labels from 0 without gaps, '
      'or give `num_classes`.'
    )


def scale_of(x: Rows, where: str) -> float:
  """The default factor of features x [T, ...].

  It is 1 / 255 for uint8 images, [T, H, W] or [T, H, W, C], and 1 for other dtypes.
  Raises `UserError` if x is uint8 and [T, F], which may be pixels or e.g. tokens;
  `where` is the source file or argument, for this message.
  """
  if x.dtype != np.uint8:
    return 1.0
  if x.ndim < 3:
    raise UserError(
      f'{where} is uint8 of shape {x.shape}, which are pixels or numbers such as '
      'tokens; give `scale`, the factor of the model inputs: 1/255 for pixels, 1 '
      'for tokens.'
    )
  return 1 / 255


def check_targets(shape: tuple[int, ...], y: np.ndarray, task: str, where: str) -> None:
  """Raises `UserError` unless sequences have a target at every position.

  x has `shape` [T, ...], y [T, ...] is as `Task.targets` makes it, and `task` is a key
  of `tasks.TASKS`. `where` is the source file or argument of y, for the message.
  """
  outputs = y.shape[1] if y.ndim > 1 else 1
  wanted = tasks.TASKS[task].target_shape(len(y), shape[1:], outputs)
  if y.shape != wanted:
    raise UserError(
      f'{where} has shape {y.shape}, but with x of shape {shape} the task {task} needs '
      f'{wanted}: a next token, or -1, at every position.'
    )
