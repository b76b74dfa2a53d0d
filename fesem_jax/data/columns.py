"""Columns of ids or names, e.g. of clients: missing values, and numbers for values."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once

# NaN, None and NA of pandas become such texts.
_MISSING = ('', 'nan', 'NaN', 'None', '<NA>', 'NaT')
_NUMBER = re.compile(r'-?\d{1,15}(\.\d+)?')
# Or a country, a class.
_NUMBERS_OF_NONE = (-99, -999, -9999, -99999, 999, 9999, 99999)
_FAR = 5  # Times the range of all other values.
_PERHAPS_MISSING = ('NA', 'N/A', 'null', 'NULL', 'none', '?', '-', '--')


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
  before '10'. Raises `UserError` if a row has no value, numbers and texts are mixed,
  values are lists or differ by outer blanks alone.
  """
  values = decoded(np.asarray(values), where)
  if values.dtype.kind == 'O':
    lists = [isinstance(v, Collection) and not isinstance(v, str) for v in values]
    if any(lists):
      raise UserError(
        f'{where} of row {lists.index(True)} holds several values; give one number or '
        'text each.'
      )
  missing = _missing(values)
  if len(known):
    missing &= ~np.isin(values.astype(str), known)
  if (rows := np.flatnonzero(missing)).size:
    shown = str(values[rows[0]]).strip() or 'empty'
    raise UserError(f'{where} of row {rows[0]} is {shown}; {mend}.')
  if values.dtype.kind == 'O':
    texts = np.array([isinstance(value, str) for value in values], bool)
    if texts.any() and not texts.all():
      raise UserError(
        f'{where} mixes texts, such as row {texts.argmax()}, and other values, such '
        f'as row {texts.argmin()}; give all rows one type.'
      )
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, int | float | np.number) for kind in kinds):
      values = values.astype(str)
  elif values.dtype.kind not in 'biuf':
    values = values.astype(str)
  distinct, first, numbers = np.unique(values, return_index=True, return_inverse=True)
  if distinct.dtype.kind == 'U':
    plain, counts = np.unique(np.char.strip(distinct), return_counts=True)
    if counts.max(initial=1) > 1:
      raise UserError(
        f'{where}: {str(plain[counts.argmax()])!r} also occurs with blanks around it; '
        'strip them.'
      )
  if not len(known):
    _warn_of_markers(distinct, where)
    if distinct.dtype.kind == 'U':
      warn_of_spellings(distinct.tolist(), where)
  if by_number and distinct.dtype.kind == 'U' and all(map(_NUMBER.fullmatch, distinct)):
    order = np.argsort(distinct.astype(float), kind='stable')
    numbers = np.argsort(order)[numbers]
    distinct, first = distinct[order], first[order]
  return distinct, first, numbers


def decoded(values: np.ndarray, where: str) -> np.ndarray:
  """A column whose bytes are text; raises `UserError` unless they are UTF-8."""
  try:
    if values.dtype.kind == 'S':
      return np.char.decode(values, 'utf-8')
    if values.dtype.kind == 'O' and any(isinstance(v, bytes) for v in values):
      texts = [v.decode('utf-8') if isinstance(v, bytes) else v for v in values]
      return np.array(texts, object)
  except UnicodeDecodeError as e:
    raise UserError(f'{where} holds bytes that are not UTF-8; give text.') from e
  return values


def _warn_of_markers(distinct: np.ndarray, where: str) -> None:
  """Says once that one of the distinct values may mark missing ones."""
  marker = ''
  if distinct.dtype.kind == 'U':
    near = distinct[np.isin(np.char.strip(distinct), _PERHAPS_MISSING)]
    marker = str(near[0]) if len(near) else ''
  elif len(distinct) > 1 and distinct[0] == -1:  # As codes of pandas and DBSCAN.
    marker = '-1'
  if marker:
    warn_once(
      f'{where} has a value {marker}, which is taken as any other; if it marks missing '
      'values, remove these rows.'
    )


def warn_of_missing_numbers(numbers: np.ndarray, where: str) -> None:
  """Says once that a number such as -999, far from others, may mark missing ones."""
  for marker in _NUMBERS_OF_NONE:
    marked = numbers == marker
    others = numbers[~marked]
    if not marked.any() or len(np.unique(others)) < 2:
      continue
    far = np.abs(others - marker).min() > _FAR * np.ptp(others)
    if far or (marker < 0 and others.min() >= 0):
      warn_once(
        f'{where} is {marker} in {marked.sum():,} rows, which is taken as any other '
        'number; if it marks missing values, fill them or remove these rows.'
      )


def warn_of_spellings(texts: Iterable[str], where: str) -> None:
  """Says once that distinct texts differ by capitals, forms of letters or zeros alone.

  The zeros are those of numbers: '7', '007' and '7.0'.
  """
  seen = dict[str, str]()
  for text in texts:
    plain = unicodedata.normalize('NFKC', text).casefold()
    if _NUMBER.fullmatch(plain):
      plain = str(float(plain))
    if plain in seen:
      warn_once(
        f'{where} has the values {seen[plain]!r} and {text!r}, which are taken as '
        'different; if they are one, spell them alike.'
      )
      return
    seen[plain] = text
