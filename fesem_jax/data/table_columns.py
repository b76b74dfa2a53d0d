"""Columns of a table as labels, ids and features."""

import re
from typing import Any

import numpy as np

from fesem_jax.data import columns
from fesem_jax.utils.errors import UserError

# More values of a text are no categories, but names, notes or times; so are more than
# a few that mostly occur once.
_MOST_VALUES, _FEW_VALUES = 100, 20
_MANY_ROWS = 20  # In fewer, whole numbers may all differ by chance.
_ID = re.compile(r'(.*[\W_])?(id|ID|Id)|.*[a-z](Id|ID)')
_NUMBER = re.compile(r'[$€£¥]?\s*[-+]?\d*[.,]?\d+([eE][-+]?\d+)?\s*[%$€£¥]?')
_SPLITS = {'train': 0, 'training': 0, 'test': 1, 'testing': 1}


def values(column: Any, where: str) -> np.ndarray:
  """A column of labels, clients, clusters or a split, without missing values."""
  import pyarrow

  kind = column.type
  if pyarrow.types.is_dictionary(kind):
    column, kind = column.cast(kind.value_type), kind.value_type
  if _is_list(kind):  # Several targets of a regression.
    return np.stack(_of_lists(column.to_pylist(), '', where)[0], axis=1)
  rows = column.to_pylist()
  missing = [i for i, v in enumerate(rows) if v is None or v != v]
  if missing:
    raise UserError(
      f'{where} has no value in {len(missing):,} of {len(rows):,} rows, the first of '
      f'them row {missing[0]}; remove these rows, or fill them.'
    )
  held = np.array(rows, object)
  plain = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
  if pyarrow.types.is_decimal(kind):
    return held.astype(np.float64)
  return held.astype(kind.to_pandas_dtype()) if plain else _texts(held)


def _texts(values: np.ndarray) -> np.ndarray:
  if all(isinstance(v, bool) for v in values):
    return values.astype(np.int64)
  return np.array([v if isinstance(v, str) else str(v) for v in values])


def split(given: np.ndarray, where: str) -> np.ndarray:
  """0 for training and 1 for test rows."""
  if given.dtype.kind != 'U':
    return given
  other = [v for v in np.unique(given).tolist() if v.lower() not in _SPLITS]
  if other:
    raise UserError(
      f'{where} has the value {other[0]!r}; it must hold train and test, or 0 and 1. '
      'Remove other rows, such as those for validation, or leave the column out.'
    )
  return np.array([_SPLITS[v.lower()] for v in given.tolist()])


def features(
  column: Any, name: str, where: object
) -> tuple[list[np.ndarray], list[str]]:
  """[T] float32 columns that a column of the table becomes, and their names."""
  import pyarrow

  types, kind = pyarrow.types, column.type
  categories = types.is_dictionary(kind)
  if categories:
    column, kind = column.cast(kind.value_type), kind.value_type
  called = f'{where}: column {name or "without a name"}'
  numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
  empty = types.is_null(kind)
  if not (
    numeric or types.is_boolean(kind) or _is_text(kind) or _is_list(kind) or empty
  ):
    raise UserError(
      f'{called} holds {kind}, which is no number and no text; turn it into numbers, '
      'or leave it out by `drop_columns`.'
      + " Images are read from the hub's files by `name=hub`."
      * ('bytes' in str(kind))
    )
  missing = column.null_count
  if numeric and not missing:
    numbers = column.cast(pyarrow.float64()).to_numpy()
    missing = int(np.isnan(numbers).sum())
  if not name and missing == len(column):  # A comma at the end of each line.
    return [], []
  if missing:
    raise UserError(
      f'{called} has no value in {missing:,} of {len(column):,} rows; fill them, '
      'remove these rows, or leave the column out by `drop_columns`.'
    )
  if numeric:
    # What pandas calls them in CSV and in Parquet.
    nameless = not name or name.startswith(('Unnamed:', '__index_level_'))
    counting = types.is_integer(kind) and _are_row_numbers(numbers)
    if counting and (nameless or name == 'index'):
      return [], []
    if types.is_integer(kind) and nameless:  # Of some rows of a frame, or of each file.
      return [], []
    if types.is_integer(kind) and len(distinct := np.unique(numbers)) == len(numbers):
      # Also in another order, as of shuffled rows, or of some of them.
      what = 'numbers the rows' if _are_row_numbers(distinct) else ''
      if _are_ids(distinct, name):
        what = what or 'has another whole number in each row, as ids have'
    return [numbers], [name]
  if types.is_boolean(kind):
    return [np.array(column.to_pylist(), np.float32)], [name]
  if _is_list(kind):
    return _of_lists(column.to_pylist(), name, called)
  return _of_categories(column, name, called, categories)


def _is_text(kind: Any) -> bool:
  from pyarrow import types

  view = getattr(types, 'is_string_view', lambda _: False)
  return types.is_string(kind) or types.is_large_string(kind) or view(kind)


def _is_list(kind: Any) -> bool:
  from pyarrow import types

  return (
    types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
  )


def _are_row_numbers(numbers: np.ndarray) -> bool:
  count = np.arange(len(numbers))
  return len(numbers) > 1 and any((numbers == count + first).all() for first in (0, 1))


def _are_ids(distinct: np.ndarray, name: str) -> bool:
  """Tells if distinct whole numbers, ascending, are called ids, or differ as these do.

  Of so many random numbers of their range some would be equal, with 95 %; populations
  or prices all differ by chance.
  """
  dense = len(distinct) ** 2 > 6 * (distinct[-1] - distinct[0])
  return len(distinct) >= _MANY_ROWS and bool(dense or _ID.fullmatch(name))


def _of_lists(
  rows: list[list[Any]], name: str, called: str
) -> tuple[list[np.ndarray], list[str]]:
  """Lists of as many numbers in each row, such as embeddings."""
  try:
    numbers = np.array(rows, np.float64)
  except (ValueError, TypeError):
    numbers = np.zeros(0)
  return list(numbers.T), [f'{name}[{i}]' for i in range(numbers.shape[1])]


def _check_no_numbers(texts: list[str], called: str) -> None:
  """Raises `UserError` if the different texts of a column are numbers, or most are."""
  numbers = [v for v in texts if _NUMBER.fullmatch(v.strip())]
  few = len(numbers) < max(3, len(texts) / 2) and len(numbers) < len(texts)
  if not numbers or few:
    return
  others = [v for v in texts if v not in numbers]
  what = f'and other texts, such as {others[0]!r}' if others else 'as texts'
  comma = any(',' in v for v in numbers)
  mend = 'make all of them numbers' + ', with points and no commas' * comma
  raise UserError(
    f'{called} holds numbers, such as {numbers[0]!r}, {what}; {mend}, or a categorical '
    'column of a data frame, or leave it out by `drop_columns`.'
  )


def _of_categories(
  column: Any, name: str, called: str, chosen: bool
) -> tuple[list[np.ndarray], list[str]]:
  """One 0/1 column for each value of a text, of two values for the second alone.

  Numbers as texts are refused unless the table says that they are categories, `chosen`.
  """
  texts = np.array(column.to_pylist())
  distinct, _, numbers = columns.numbered(
    texts, called, 'fill it, or leave the column out by `drop_columns`'
  )
  if not chosen:
    _check_no_numbers(distinct.tolist(), called)
  mostly_once = len(distinct) > _FEW_VALUES and len(texts) <= 2 * len(distinct)
  if len(distinct) > _MOST_VALUES or (mostly_once and not chosen):
    raise UserError(
      f'{called} has {len(distinct):,} different texts in {len(texts):,} rows, such as '
      f'{str(distinct[0])!r}; turn it into numbers, or leave it out by `drop_columns`.'
    )
  first = 1 if len(distinct) == 2 else 0
  indicators = [(numbers == i).astype(np.float32) for i in range(first, len(distinct))]
  return indicators, [f'{name}={value}' for value in distinct[first:].tolist()]
