"""CSV, JSON, Parquet and Feather files as Arrow tables."""

import codecs
import io
import json
import pathlib
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from fesem_jax.utils.display import listed
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import opened, reading

_DELIMITERS = (',', ';', '\t', '|')
_SEPARATOR = re.compile(r'sep=.\r?\n')
# What stands for a missing value, in columns of numbers and of text.
_MISSING = ['', 'nan', 'NaN', 'NAN', 'NA', 'N/A', '#N/A', 'null', 'NULL', 'None', '?']
_TEXTS = (
  '.csv', '.tsv', '.txt', '.csv.gz', '.tsv.gz', '.data', '.jsonl', '.jsonl.gz',
)  # fmt: skip
_ABOUT = b'huggingface'  # What `datasets` says of the columns in a Parquet file.
_SUFFIXES = (*_TEXTS, '.parquet', '.feather')
_KINDS = '.csv, .tsv, .jsonl, .parquet or .feather'
# Names of files and folders that are no clients.
SPLITS = {
  'train': 'train', 'training': 'train', 'test': 'test', 'testing': 'test',
  'val': 'val', 'valid': 'val', 'validation': 'val',
}  # fmt: skip


class Part(NamedTuple):
  """A table of a folder of them.

  Attributes:
    client: its name; '' where files are no clients.
    split: 'train' or 'test'; '' where files do not tell.
    table: of pyarrow.
  """

  client: str
  split: str
  table: Any


def read_folder(folder: pathlib.Path, texts: Collection[str] = ()) -> list[Part]:
  """The tables of a folder; arguments and errors as of `read`.

  Files are those of clients, CLIENT.csv, or of splits, train.csv and test.csv. Folders
  in it are clients with such splits, CLIENT/train.csv, or the splits of such clients,
  train/CLIENT.csv.
  """
  with reading(folder):
    paths = sorted(filter(_is_table, folder.iterdir()))
    below = sorted(filter(_is_table, folder.glob('[!.]*/*')))
  paths = paths or below
  files: dict[tuple[str, str], pathlib.Path] = {}
  for path in paths:
    of_folder = '' if path.parent == folder else path.parent.name
    kind = next(s for s in _SUFFIXES if path.name.lower().endswith(s))
    stem, above = path.name[: -len(kind)], SPLITS.get(of_folder.lower(), '')
    split = above or SPLITS.get(stem.lower(), '')
    client = stem if above or not split else of_folder
    if (client, split) in files:
      raise UserError(
        f'{folder} has two files of one name, {files[client, split]} and {path}; give '
        'each its own.'
      )
    files[client, split] = path
  names, splits = ({key[i] for key in files} for i in (0, 1))
  if ('' in names and len(names) > 1) or ('' in splits and len(splits) > 1):
    raise UserError(
      f'{folder} holds tables of clients beside train and test; the tables are either '
      'those of clients or of splits, or both in folders: CLIENT/train.csv.'
    )
  if splits in ({'train'}, {'test'}):
    raise UserError(f'{folder} holds examples of {splits.pop()} alone; add the others.')
  check_classes(p for p in files.values() if p.name.lower().endswith('.parquet'))
  return [Part(*key, read(path, texts)) for key, path in files.items()]


def check_classes(paths: Iterable[pathlib.Path]) -> None:
  """Raises `UserError` if Parquet files number the classes of a column differently.

  Numbers of Hugging Face's class labels would be read as if all were those of one file.
  """
  from pyarrow import parquet

  known: dict[str, tuple[pathlib.Path, list[str]]] = {}  # Column -> file, classes.
  for path in paths:
    with reading(path):
      about = json.loads((parquet.read_schema(path).metadata or {}).get(_ABOUT, '{}'))
    features = (about.get('info') or {}).get('features') or {}
    for column, feature in features.items():
      classes = feature.get('names') if isinstance(feature, dict) else None
      if classes is None:
        continue
      first, others = known.setdefault(column, (path, classes))
      if classes != others:
        raise UserError(
          f'{path} has the classes {listed(classes, 5)} in the column {column}, '
          f'{first} {listed(others, 5)}; number those of all files alike.'
        )


def _is_table(path: pathlib.Path) -> bool:
  name = path.name.lower()
  return path.is_file() and name.endswith(_SUFFIXES) and not name.startswith('.')


def read(path: pathlib.Path, texts: Collection[str] = ()) -> Any:
  """The table of a .parquet, .feather, .jsonl or .csv file, also .tsv and gzipped.

  The first line of a .csv file names the columns; they are separated by what occurs
  most often in it, of commas, semicolons, tabs and bars. Columns `texts` of such a file
  stay as they are written: 007 is not 7. A .jsonl file has an object on each line.
  Raises a `UserError` that names the file if it is absent or damaged.
  """
  name = path.name.lower()
  if name.endswith('.parquet'):
    from pyarrow import parquet

    with reading(path):
      return parquet.ParquetFile(path).read()
  if name.endswith('.feather'):
    from pyarrow import feather

    with reading(path):
      return feather.read_table(path)
  with opened(path) as file:
    raw = file.read()
  if name.endswith(('.jsonl', '.jsonl.gz')):
    from pyarrow import json

    with reading(path):  # One block: types are then those of whole columns.
      options = json.ReadOptions(block_size=max(2**20, len(raw) + 1))
      return json.read_json(io.BytesIO(raw), options)
  wide = raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel's.
  text = raw.decode('utf-16' if wide else 'utf-8-sig')
  separator = _SEPARATOR.match(text)  # A line for Excel.
  text = text[separator.end() :] if separator else text
  header = text.partition('\n')[0]
  return _parsed(path, text, max(_DELIMITERS, key=header.count), texts)


def _parsed(
  path: pathlib.Path, text: str, delimiter: str, texts: Collection[str]
) -> Any:
  import pyarrow
  from pyarrow import compute, csv

  header = text.partition('\n')[0].rstrip('\r').split(delimiter)
  spelled = [name for name in header if name.strip() in texts]  # Blanks count here.
  converted = csv.ConvertOptions(
    null_values=_MISSING, strings_can_be_null=True, quoted_strings_can_be_null=True,
    column_types=dict.fromkeys([*texts, *spelled], pyarrow.string()),
  )  # fmt: skip
  parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
  # One block: types are then those of whole columns.
  raw = text.encode()
  reading_options = csv.ReadOptions(block_size=max(2**20, len(raw) + 1))
  table = csv.read_csv(io.BytesIO(raw), reading_options, parsing, converted)
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
