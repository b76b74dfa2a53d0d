"""CSV and Parquet files as Arrow tables."""

import io
import pathlib
from collections.abc import Collection
from typing import Any

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import BoundedReader, first_line, reading

_DELIMITERS = (',', ';', '\t', '|')
# What stands for a missing value, in columns of numbers and of text.
_MISSING = ['', 'nan', 'NaN', 'NAN', 'NA', 'N/A', '#N/A', 'null', 'NULL', 'None', '?']
_SUFFIXES = ('.csv', '.tsv', '.txt', '.csv.gz', '.tsv.gz', '.data')


def read_folder(folder: pathlib.Path, texts: Collection[str] = ()) -> dict[str, Any]:
  """Name -> table of each file of a folder; arguments and errors as of `read`."""
  with reading(folder):
    paths = sorted(
      p
      for p in folder.iterdir()
      if p.is_file() and p.name.lower().endswith((*_SUFFIXES, '.parquet'))
    )
  if not paths:
    raise UserError(f'{folder} holds no table; put a .csv or .parquet file there.')
  found = {path.name.split('.')[0]: read(path, texts) for path in paths}
  if {'train', 'test'} <= {name.lower() for name in found}:
    raise UserError(
      f'{folder} holds a table train and a table test, but the tables of a folder are '
      'clients; join them into one file with a column split (0 training, 1 test).'
    )
  if len(found) < len(paths):
    raise UserError(f'{folder} has two files of one name; give each its own.')
  return found


def read(path: pathlib.Path, texts: Collection[str] = ()) -> Any:
  """The table of a .parquet or .csv file, also .tsv and gzipped.

  Its first line names the columns; they are separated by what occurs most often in it,
  of commas, semicolons, tabs and bars. Columns `texts` of such a file stay as they are
  written: 007 is not 7. Raises a `UserError` that names the file if it is absent or
  damaged.
  """
  if not path.is_file():
    raise UserError(
      f'{path} does not exist; check the name, or the folder that it is relative to.'
    )
  if path.suffix == '.parquet':
    from pyarrow import parquet

    with reading(path):
      return parquet.ParquetFile(path).read()
  if not path.name.lower().endswith(_SUFFIXES):
    raise UserError(f'{path} is no table; give a .csv, .tsv or .parquet file.')
  with BoundedReader(path) as file:
    raw = file.read()
  try:
    text = raw.decode('utf-8-sig')
  except UnicodeDecodeError as e:
    raise UserError(f'{path} is not UTF-8 text ({e.reason}); convert it.') from e
  if '\0' in text:
    raise UserError(
      f'{path} holds zero bytes, which no table of text has; export it again.'
    )
  header = text.partition('\n')[0]
  if not header.strip():
    raise UserError(f'{path} has no first line that names its columns; add one.')
  return _parsed(path, text, max(_DELIMITERS, key=header.count), texts)


def _parsed(
  path: pathlib.Path, text: str, delimiter: str, texts: Collection[str]
) -> Any:
  import pyarrow
  from pyarrow import compute, csv

  converted = csv.ConvertOptions(
    null_values=_MISSING, strings_can_be_null=True, quoted_strings_can_be_null=True,
    column_types=dict.fromkeys(texts, pyarrow.string()),
  )  # fmt: skip
  parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
  # One block: types are then those of whole columns.
  raw = text.encode()
  reading_options = csv.ReadOptions(block_size=max(2**20, len(raw) + 1))
  try:
    table = csv.read_csv(io.BytesIO(raw), reading_options, parsing, converted)
  except (pyarrow.ArrowInvalid, pyarrow.ArrowKeyError) as e:
    raise UserError(
      f'{path} is no table of columns: {first_line(e)}. Its first line must name as '
      'many columns as the others have.'
    ) from e
  table = table.rename_columns([name.strip() for name in table.column_names])
  for i, field in enumerate(table.schema):
    if pyarrow.types.is_string(field.type):  # Blanks around commas.
      trimmed = compute.utf8_trim_whitespace(table.column(i))
      table = table.set_column(i, field.name, trimmed)
  if all(_is_number(name) for name in table.column_names):
    raise UserError(
      f'{path} begins with numbers; its first line must name the columns.'
    )
  return table


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True
