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
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import first_line


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
  _tell_of_index(frame, where, chosen)
  return _named(_table(frame, where), where, chosen)


def of_frames(
  frames: Mapping[str, Any], where: object, chosen: Columns
) -> dict[str, Any]:
  """The arrays of a data frame of each client; see `of_file`."""
  _tell_of_index(next(iter(frames.values())), where, chosen)
  parts = [
    Part(str(name), '', _table(frame, f'{where}, {name}'))
    for name, frame in frames.items()
  ]
  return _of_parts(parts, where, chosen)


def _of_parts(parts: Sequence[Part], where: object, chosen: Columns) -> dict[str, Any]:
  """The arrays of the tables of clients or splits, which have the same columns."""
  import pyarrow

  first = parts[0]
  for part in parts:
    columns = set(first.table.column_names) ^ set(part.table.column_names)
    if columns:
      called = (' of '.join(filter(None, p[1::-1])) for p in (part, first))
      raise UserError(
        f'{where}: {" and ".join(called)} do not both have the column '
        f'{min(columns)!r}; give all the same columns.'
      )
  try:
    whole = pyarrow.concat_tables(
      [part.table for part in parts], promote_options='permissive'
    )
  except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as e:
    raise UserError(
      f'{where}: a column is of several types in its files ({first_line(e)}); give '
      'each column one type.'
    ) from e
  arrays = _named(whole, where, chosen)
  sizes = [part.table.num_rows for part in parts]
  if first.split:
    if 'split' in arrays:
      raise UserError(
        f'{where} has a column of splits beside files train and test; leave it out.'
      )
    arrays['split'] = np.repeat([part.split == 'test' for part in parts], sizes) * 1
  if first.client and 'client' in arrays:
    names = ', '.join(dict.fromkeys(part.client for part in parts))
    warn_once(
      f'{where}: a column says the clients, so that the tables ({names}) are not '
      'clients of their own.'
    )
  elif first.client:
    arrays['client'] = np.repeat([part.client for part in parts], sizes)
  return arrays


def _tell_of_index(frame: Any, where: object, chosen: Columns) -> None:
  """Says once that the named index of a data frame becomes a feature."""
  names = getattr(getattr(frame, 'index', None), 'names', ())
  known = {'y', 'client', 'cluster', 'split', *chosen[:4], *chosen.drop}
  for name in [str(name) for name in names if name is not None]:
    if name not in known and name != 'index':  # Row numbers are told of elsewhere.
      warn_once(
        f'{where}: the index {name} of the data frame is a feature; if it means '
        'nothing, leave it out by `drop_columns`.'
      )


def _table(frame: Any, where: object) -> Any:
  """A data frame as an Arrow table; raises `UserError` if it is none."""
  import pyarrow

  try:
    if isinstance(frame, pyarrow.Table):
      table = frame
    elif _of_hub(frame):
      table = _with_names(frame, where)
    elif hasattr(frame, 'to_arrow'):  # Of polars.
      table = frame.to_arrow()
    elif type(frame).__module__.partition('.')[0] == 'pandas':
      named = [name for name in frame.index.names if name is not None]
      frame = frame.reset_index(level=named) if named else frame
      table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    else:
      table = pyarrow.table(frame)
  except (pyarrow.ArrowException, TypeError, ValueError) as e:
    reasons = '; '.join(map(first_line, map(ValueError, e.args)))
    raise UserError(
      f'{where} has columns of one name, or one of several types ({reasons}); '
      'give each column a name and one type.'
    ) from e
  if not isinstance(table, pyarrow.Table):
    raise UserError(
      f'{where} is a {type(frame).__name__}, no table of columns; give a data frame.'
    )
  return table


def _with_names(dataset: Any, where: object) -> Any:
  """The Arrow table of a dataset, with the names of classes in place of numbers.

  Raises `UserError` if the dataset transforms its rows as it gives them.
  """
  import pyarrow

  given = getattr(dataset, 'format', {})
  if given.get('type') == 'custom':
    raise UserError(
      f'{where} has a transform, set by `with_transform` or `set_transform`, which is '
      'no part of its table; apply it by `map`, or remove it by `reset_format`.'
    )
  if (shown := given.get('columns')) is not None:
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
  import pyarrow

  names = [str(name) for name in table.column_names]
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise UserError(f'{where} has two columns {twice!r}; rename one.')
  held = dict(zip(names, table.columns, strict=True))
  if not table.num_rows:
    raise UserError(f'{where} holds no examples; give it rows.')
  roles = _roles(held, where, chosen)
  arrays: dict[str, Any] = {
    role: table_columns.values(held[name], f'{where}: column {name}')
    for role, name in roles.items()
  }
  if pyarrow.types.is_temporal(held[roles['y']].type):
    raise UserError(
      f'{where}: column {roles["y"]} holds dates, which are no labels; turn them into '
      'numbers or names.'
    )
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
  if not features:
    raise UserError(
      f'{where} has no columns of features beside {", ".join(roles.values())}; '
      'add some, or drop fewer.'
    )
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
    elif alike := [name for name in held if name.strip().lower() == role]:
      warn_once(
        f'{where}: column {alike[0]!r} is a feature, not the {role}, whose column is '
        f'called {role}; if it is meant, pass {argument(options[role], alike[0])}.'
      )
  twice = [name for name in roles.values() if list(roles.values()).count(name) > 1]
  if twice or set(roles.values()) & set(chosen.drop):
    name = [*twice, *sorted(set(roles.values()) & set(chosen.drop))][0]
    raise UserError(
      f'{where}: column {name} is named for two purposes; name other columns for the '
      'label, the client, the cluster, the split and those to drop.'
    )
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
