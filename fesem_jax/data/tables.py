"""Tables of a user's own: CSV and Parquet files, and data frames of pandas or polars.

A row is an example. Some columns say its label, client, cluster and split; all others
are features: numbers as they are, and texts as one 0/1 column for each value.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.data import table_columns
from fesem_jax.data.table_files import Part, read, read_folder
from fesem_jax.utils.display import listed
from fesem_jax.utils.errors import UserError, argument, check


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
  file and column if it is damaged, lacks a column, or values are missing. In a folder,
  each file is a client, unless a column says the clients.
  """
  texts = chosen.client or 'client', chosen.cluster or 'cluster'
  if path.is_dir():
    arrays = _of_parts(read_folder(path, texts), path, chosen)
  else:
    arrays = _named(read(path, texts), path, chosen)
  for role in ('client', 'cluster'):
    if role in arrays:
      arrays[role] = _numbers_as_such(arrays[role])
  return arrays


def _numbers_as_such(names: np.ndarray) -> np.ndarray:
  """Whole numbers if all names are written as such, so that 10 comes after 2."""
  written = [str(name) for name in names]
  plain = all(t.lstrip('-').isdecimal() and str(int(t)) == t for t in written)
  return np.array([int(t) for t in written]) if plain else names


def is_frame(value: Any) -> bool:
  """True if a value is a data frame of pandas, polars or Arrow, or a hub's dataset."""
  columns = hasattr(value, 'columns') or hasattr(value, 'to_arrow')
  return (columns and hasattr(value, '__arrow_c_stream__')) or _of_hub(value)


def _of_hub(value: Any) -> bool:
  """True if a value is a `Dataset` of Hugging Face."""
  several = isinstance(value, Mapping)
  return not several and all(hasattr(value, n) for n in ('column_names', 'with_format'))


def of_frame(frame: Any, where: object, chosen: Columns) -> dict[str, Any]:
  """The arrays of a data frame; see `of_file`. `where` names it in errors."""
  return _named(_table(frame, where), where, chosen)


def of_frames(
  frames: Mapping[str, Any], where: object, chosen: Columns
) -> dict[str, Any]:
  """The arrays of a data frame of each client; see `of_file`."""
  parts = [
    Part(str(name), '', _table(frame, f'{where}, {name}'))
    for name, frame in frames.items()
  ]
  return _of_parts(parts, where, chosen)


def _of_parts(parts: Sequence[Part], where: object, chosen: Columns) -> dict[str, Any]:
  """The arrays of the tables of clients or splits, which have the same columns."""
  import pyarrow

  first = parts[0]
  whole = pyarrow.concat_tables(
    [part.table for part in parts], promote_options='permissive'
  )
  arrays = _named(whole, where, chosen)
  sizes = [part.table.num_rows for part in parts]
  if first.split:
    arrays['split'] = np.repeat([part.split == 'test' for part in parts], sizes) * 1
  if first.client and 'client' not in arrays:
    arrays['client'] = np.repeat([part.client for part in parts], sizes)
  return arrays


def _table(frame: Any, where: object) -> Any:
  """A data frame as an Arrow table; raises `UserError` if it is none."""
  import pyarrow

  if isinstance(frame, pyarrow.Table):
    table = frame
  elif _of_hub(frame):
    table = _with_names(frame)
  elif hasattr(frame, 'to_arrow'):  # Of polars.
    table = frame.to_arrow()
  elif type(frame).__module__.partition('.')[0] == 'pandas':
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named) if named else frame
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
  else:
    table = pyarrow.table(frame)
  return table


def _with_names(dataset: Any) -> Any:
  """The Arrow table of a dataset, with the names of classes in place of numbers.

  Raises `UserError` if the dataset transforms its rows as it gives them.
  """
  import pyarrow

  form = getattr(dataset, 'format', {})
  check(form.get('type') != 'custom', 'arrays: has a transform; apply it by `map`')
  if (shown := form.get('columns')) is not None:
    dataset = dataset.select_columns(shown)
  table = dataset.with_format('arrow')[:]
  for i, (name, feature) in enumerate(dataset.features.items()):
    if classes := getattr(feature, 'names', None):
      numbers = table.column(i).combine_chunks().cast(pyarrow.int32())
      known = pyarrow.compute.if_else(pyarrow.compute.less(numbers, 0), None, numbers)
      named = pyarrow.DictionaryArray.from_arrays(known, pyarrow.array(classes))
      table = table.set_column(i, name, named)
  return table


def _named(table: Any, where: object, chosen: Columns) -> dict[str, Any]:

  names = [str(name) for name in table.column_names]
  held = dict(zip(names, table.columns, strict=True))
  roles = _roles(held, where, chosen)
  arrays: dict[str, Any] = {
    role: table_columns.values(held[name], f'{where}: column {name}')
    for role, name in roles.items()
  }
  if 'split' in arrays:
    arrays['split'] = table_columns.split(
      arrays['split'], f'{where}: column {roles["split"]}'
    )
  no_features = {*roles.values(), *chosen.drop}
  features, of_columns = [], []
  for name in names:
    if name not in no_features:
      own, own_names = table_columns.features(held[name], name, where)
      features += own
      of_columns += own_names
  return arrays | {'x': np.stack(features, axis=1), 'feature_names': of_columns}


def _roles(held: Mapping[str, Any], where: object, chosen: Columns) -> dict[str, str]:
  """Name of an array -> that of its column, of those that are no features."""
  given = {
    'y': chosen.label, 'client': chosen.client, 'cluster': chosen.cluster,
    'split': chosen.split,
  }  # fmt: skip
  options = {
    'y': 'label_column', 'client': 'client_column', 'cluster': 'cluster_column',
    'split': 'split_column',
  }  # fmt: skip
  roles = {}
  for role, column in given.items():
    if column and column not in held:
      raise UserError(
        f'{argument(options[role], column)} is not among the columns of {where}: '
        f'{listed(held, 20)}.'
      )
    if column or role in held:
      roles[role] = column or role
  separators = ' Commas, semicolons, tabs or bars separate columns.'
  if 'y' not in roles:
    raise UserError(
      f'{where} has no column y; name that of the labels by `label_column`: '
      f'{listed(held, 20)}.' + separators * (len(held) == 1)
    )
  if unknown := [name for name in chosen.drop if name not in held]:
    raise UserError(
      f'{argument("drop_columns", unknown[0])} is not among the columns of {where}: '
      f'{listed(held, 20)}.'
    )
  return roles
