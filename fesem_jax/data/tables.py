"""Tables of a user's own: CSV and Parquet files, and data frames of pandas or polars.

A row is an example. Some columns say its label, client, cluster and split; all others
are features: numbers as they are, and texts as one 0/1 column for each value.
"""

import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.data import columns
from fesem_jax.data.table_files import read
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import first_line

# More values of a text are no categories, but names, notes or times.
_MOST_VALUES = 100
_NUMBER = re.compile(r'[-+]?\d*[.,]?\d+([eE][-+]?\d+)?')
_SPLITS = {'train': 0, 'training': 0, 'test': 1, 'testing': 1}


class Columns(NamedTuple):
  """Names of the columns that are no features; '' is the default of each.

  Attributes:
    label: 'y' by default.
    client: 'client' by default, if there is such a column.
    cluster: 'cluster' by default, if there is such a column.
    split: 'split' by default, if there is such a column.
    drop: columns that are left out.
  """

  label: str = ''
  client: str = ''
  cluster: str = ''
  split: str = ''
  drop: tuple[str, ...] = ()


def of_file(path: pathlib.Path, chosen: Columns) -> dict[str, Any]:
  """The arrays of a CSV or Parquet file, named as those of `arrays.load`.

  Also `feature_names`, those of the columns of `x`. Raises a `UserError` that names
  file and column if it is damaged, lacks a column, or values are missing.
  """
  return _named(read(path), path, chosen)


def is_frame(value: Any) -> bool:
  """Whether a value is a data frame of pandas or polars, or an Arrow table."""
  return hasattr(value, '__arrow_c_stream__') or hasattr(value, '__dataframe__')


def of_frame(frame: Any, where: object, chosen: Columns) -> dict[str, Any]:
  """The arrays of a data frame; see `of_file`. `where` names it in errors."""
  import pyarrow

  try:
    if isinstance(frame, pyarrow.Table):
      table = frame
    elif hasattr(frame, 'to_arrow'):  # Of polars.
      table = frame.to_arrow()
    elif type(frame).__module__.partition('.')[0] == 'pandas':
      table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    else:
      table = pyarrow.table(frame)
  except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, TypeError, ValueError) as e:
    said = '; '.join(map(first_line, map(ValueError, e.args)))
    raise UserError(
      f'{where} has columns of one name, or one of several types ({said}); '
      'give each column a name and one type.'
    ) from e
  return _named(table, where, chosen)


def _named(table: Any, where: object, chosen: Columns) -> dict[str, Any]:
  names = [str(name) for name in table.column_names]
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise UserError(f'{where} has two columns {twice!r}; rename one.')
  held = dict(zip(names, table.columns, strict=True))
  if not table.num_rows:
    raise UserError(f'{where} holds no examples.')
  given = {
    'y': chosen.label, 'client': chosen.client, 'cluster': chosen.cluster,
    'split': chosen.split,
  }  # fmt: skip
  options = {
    'y': 'label_column', 'client': 'client_column', 'cluster': 'cluster_column',
    'split': 'split_column',
  }  # fmt: skip
  found = {}
  for role, column in given.items():
    if column and column not in held:
      raise UserError(
        f'{argument(options[role], column)} is not among the columns of {where}: '
        f'{_listed(names)}.'
      )
    if column or role in held:
      found[role] = column or role
  if 'y' not in found:
    raise UserError(
      f'{where} has no column y; name that of the labels by `label_column`: '
      f'{_listed(names)}.'
    )
  if unknown := [name for name in chosen.drop if name not in held]:
    raise UserError(
      f'{argument("drop_columns", unknown[0])} is not among the columns of {where}: '
      f'{_listed(names)}.'
    )
  arrays: dict[str, Any] = {
    role: _values(held[name], f'{where}: column {name}') for role, name in found.items()
  }
  if 'split' in arrays:
    arrays['split'] = _split(arrays['split'], f'{where}: column {found["split"]}')
  left = {*found.values(), *chosen.drop}
  features, of_columns = [], []
  for name in names:
    if name not in left:
      own, own_names = _features(held[name], name, where)
      features += own
      of_columns += own_names
  if not features:
    raise UserError(
      f'{where} has no columns of features beside {", ".join(found.values())}.'
    )
  return arrays | {'x': np.stack(features, axis=1), 'feature_names': of_columns}


def _listed(names: list[str]) -> str:
  return ', '.join(names[:20]) + ', ...' * (len(names) > 20)


def _values(column: Any, where: str) -> np.ndarray:
  """A column of labels, clients, clusters or a split, without missing values."""
  import pyarrow

  kind = column.type
  if pyarrow.types.is_dictionary(kind):
    column, kind = column.cast(kind.value_type), kind.value_type
  values = np.array(column.to_pylist(), object)
  missing = [i for i, v in enumerate(values) if v is None or v != v]
  if missing:
    raise UserError(
      f'{where} has no value in {len(missing):,} of {len(values):,} rows, the first of '
      f'them row {missing[0]}; remove these rows, or fill them.'
    )
  plain = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
  if pyarrow.types.is_decimal(kind):
    return values.astype(np.float64)
  return values.astype(kind.to_pandas_dtype()) if plain else _texts(values)


def _texts(values: np.ndarray) -> np.ndarray:
  if all(isinstance(v, bool) for v in values):
    return values.astype(np.int64)
  return np.array([v if isinstance(v, str) else str(v) for v in values])


def _split(values: np.ndarray, where: str) -> np.ndarray:
  """0 for training and 1 for test rows."""
  if values.dtype.kind != 'U':
    return values
  other = [v for v in np.unique(values).tolist() if v.lower() not in _SPLITS]
  if other:
    raise UserError(
      f'{where} has the value {other[0]!r}; it must hold train and test, or 0 and 1. '
      'Remove other rows, such as those for validation, or leave the column out.'
    )
  return np.array([_SPLITS[v.lower()] for v in values.tolist()])


def _features(
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
  if not (numeric or types.is_boolean(kind) or _is_text(kind) or _is_list(kind)):
    raise UserError(
      f'{called} holds {kind}, which is no number and no text; turn it into numbers, '
      'or leave it out by `drop_columns`.'
    )
  missing = column.null_count
  if numeric and not missing:
    numbers = column.cast(pyarrow.float64()).to_numpy()
    missing = int(np.isnan(numbers).sum())
  if missing:
    raise UserError(
      f'{called} has no value in {missing:,} of {len(column):,} rows; fill them, '
      'remove these rows, or leave the column out by `drop_columns`.'
    )
  if numeric:
    if types.is_integer(kind) and _are_row_numbers(numbers):
      if name in ('', 'index') or name.startswith('Unnamed:'):
        warn_once(f'{called} numbers the rows and is left out.')
        return [], []
      warn_once(
        f'{called} is a feature, but numbers the rows; if it means nothing, leave it '
        'out by `drop_columns`.'
      )
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


def _of_lists(
  rows: list[list[Any]], name: str, called: str
) -> tuple[list[np.ndarray], list[str]]:
  """Lists of as many numbers in each row, such as embeddings."""
  try:
    numbers = np.array(rows, np.float64)
  except (ValueError, TypeError):
    numbers = np.zeros(0)
  if numbers.ndim != 2 or np.isnan(numbers).any():
    raise UserError(
      f'{called} holds lists that are not of as many numbers in each row; make them '
      'alike, or leave it out by `drop_columns`.'
    )
  return list(numbers.T), [f'{name}[{i}]' for i in range(numbers.shape[1])]


def _check_no_numbers(found: list[str], called: str) -> None:
  """Raises `UserError` if the different texts of a column are numbers, or most are."""
  numbers = [v for v in found if _NUMBER.fullmatch(v.strip())]
  few = len(numbers) < max(3, len(found) / 2) and len(numbers) < len(found)
  if not numbers or few:
    return
  others = [v for v in found if v not in numbers]
  what = f'and other texts, such as {others[0]!r}' if others else 'as texts'
  comma = any(',' in v for v in numbers)
  mend = 'write decimal points' if comma else 'make all of them numbers'
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
  found, _, numbers = columns.numbered(
    texts, called, 'fill it, or leave the column out by `drop_columns`'
  )
  if not chosen:
    _check_no_numbers(found.tolist(), called)
  if len(found) > _MOST_VALUES:
    raise UserError(
      f'{called} has {len(found):,} different texts, such as {str(found[0])!r}; turn '
      'it into numbers, or leave it out by `drop_columns`.'
    )
  first = 1 if len(found) == 2 else 0
  made = [(numbers == i).astype(np.float32) for i in range(first, len(found))]
  return made, [f'{name}={value}' for value in found[first:].tolist()]
