"""Checks of what a user says about a split: sizes and ids of clients, and the scale."""

import numbers
from typing import Any

import numpy as np

from fesem_jax.utils.errors import UserError, argument


def sizes(given: Any, num_examples: int) -> np.ndarray:
  """[M] int64 numbers of examples of each client.

  Raises `UserError` unless they are whole numbers from 0 that sum to `num_examples`.
  """
  try:
    found = np.asarray(given)
  except ValueError:
    found = np.asarray(None)
  if found.ndim != 1 or found.dtype.kind not in 'biuf':
    raise UserError('`sizes` must be a list: the number of examples of each client.')
  wrong = np.flatnonzero(~((found >= 0) & (found == np.floor(found))))
  if len(wrong):
    raise UserError(
      f'`sizes`: client {wrong[0]} has {found[wrong[0]]} examples; give a whole number '
      'from 0.'
    )
  if found.sum() != num_examples:
    raise UserError(
      f'`sizes` sum to {found.sum():g}, but `x` has {num_examples} examples; give the '
      'number of examples of each client, in the order of the rows.'
    )
  return found.astype(np.int64)


def client_ids(given: Any, num_clients: int) -> np.ndarray:
  """[M] int32 ids; raises `UserError` unless they are distinct and from 0."""
  found = np.asarray(given)
  if found.shape != (num_clients,) or found.dtype.kind not in 'iu':
    raise UserError(
      f'`client_ids` must be {num_clients} whole numbers, one for each client of '
      '`sizes`.'
    )
  wide = found.min(initial=0) < 0 or found.max(initial=0) >= 2**31
  if wide or len(np.unique(found)) < num_clients:
    raise UserError(
      '`client_ids` must be distinct numbers from 0 to 2^31 - 1, as random keys are '
      'folded from them; leave it out to number the clients.'
    )
  return found.astype(np.int32)


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
