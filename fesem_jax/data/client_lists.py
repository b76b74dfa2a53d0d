"""Files that name clients: lists, and when each is available."""

import csv
import io
import json
import pathlib

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import opened, reading

_COLUMNS = ('client', 'from', 'to')


def read_names(path: str | pathlib.Path) -> list[str]:
  """The names of clients in a text file, one a line; empty lines are left out.

  Raises `UserError` if it cannot be read, or names none.
  """
  names = [line.strip() for line in _text(path).splitlines()]
  if not any(names):
    raise UserError(f'{path} names no client; give one a line.')
  return [name for name in names if name]


def read_trace(path: str | pathlib.Path) -> list[tuple[str, float, float]]:
  """When clients are available: (name, from, to) of each line.

  The file is CSV with the columns client, from and to, or JSONL with these keys (for
  the unit, see `selection.available`). Raises `UserError` if it is neither.
  """
  lines = [(i, line) for i, line in enumerate(_text(path).splitlines(), 1) if line]
  if lines and lines[0][1].lstrip().startswith('{'):
    with reading(path):
      rows = [(i, json.loads(line)) for i, line in lines]
  else:
    with reading(path):
      table = csv.DictReader(io.StringIO('\n'.join(line for _, line in lines)))
      cells = [{k: v for k, v in row.items() if v is not None} for row in table]
      rows = list(zip((i for i, _ in lines[1:]), cells, strict=True))
  return [_interval(row, f'{path}, line {i}') for i, row in rows]


def _interval(row: object, where: str) -> tuple[str, float, float]:
  if not isinstance(row, dict) or not all(name in row for name in _COLUMNS):
    raise UserError(
      f'{where}: each line of a trace has a client, from and to; name these columns in '
      'the first line, or write {"client": "c3", "from": 1, "to": 5}.'
    )
  name, *times = (row[column] for column in _COLUMNS)
  try:
    first, last = map(float, times)
  except (TypeError, ValueError) as e:
    raise UserError(f'{where}: from and to must be numbers, not {times}.') from e
  if name is None or not str(name).strip():
    raise UserError(f'{where} has no client.')
  return str(name).strip(), first, last


def _text(path: str | pathlib.Path) -> str:
  with opened(pathlib.Path(path)) as file, reading(path):
    return file.read().decode('utf-8-sig')
