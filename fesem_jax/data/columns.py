"""Columns of ids or names, e.g. of clients: missing values, and numbers for values."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.errors import UserError

# NaN, None and NA of pandas become such texts.
_MISSING = ('', 'nan', 'NaN', 'None', '<NA>', 'NaT')
_NUMBER = re.compile(r'-?\d{1,15}(\.\d+)?')


def _missing(values: np.ndarray) -> np.ndarray:
  """[T] bool: rows without a value, as tables mark them."""
  if values.dtype.kind in 'fc':
    return ~np.isfinite(values)
  if values.dtype.kind in 'mM':
    return np.isnat(values)
  if values.dtype.kind in 'OU':
    return np.isin(np.char.strip(values.astype(str)), _MISSING)
  return np.zeros(len(values), bool)


def numbered(
  values: Any,
  where: str,
  mend: str,
  known: Sequence[str] = (),
  by_number: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The values of a column [T], and the number of each row's value.

  Returns the N values, numbers in their own order and all else as text, the first row
  of each, and [T] numbers 0..N-1. `where` is the column and `mend` what to do about
  missing values, for errors. Texts among `known` are values, e.g. 'None'. If
  `by_number`, texts that are numbers, all of them, are in the order of these: '2'
  before '10'. Raises `UserError` if a row has no value.
  """
  values = decoded(np.asarray(values))
  missing = _missing(values)
  if len(known):
    missing &= ~np.isin(values.astype(str), known)
  if (rows := np.flatnonzero(missing)).size:
    shown = str(values[rows[0]]).strip() or 'empty'
    raise UserError(f'{where} of row {rows[0]} is {shown}; {mend}.')
  if values.dtype.kind == 'O':
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, int | float | np.number) for kind in kinds):
      values = values.astype(str)
  elif values.dtype.kind not in 'biuf':
    values = values.astype(str)
  distinct, first, numbers = np.unique(values, return_index=True, return_inverse=True)
  if by_number and distinct.dtype.kind == 'U' and all(map(_NUMBER.fullmatch, distinct)):
    order = np.argsort(distinct.astype(float), kind='stable')
    numbers = np.argsort(order)[numbers]
    distinct, first = distinct[order], first[order]
  return distinct, first, numbers


def decoded(values: np.ndarray) -> np.ndarray:
  """A column whose bytes are text."""
  if values.dtype.kind == 'S':
    return np.char.decode(values, 'utf-8')
  if values.dtype.kind == 'O' and any(isinstance(v, bytes) for v in values):
    texts = [v.decode('utf-8') if isinstance(v, bytes) else v for v in values]
    return np.array(texts, object)
  return values
