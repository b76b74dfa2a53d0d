"""Files that name clients: lists, and when each is available."""

import csv
import json
import pathlib

from fesem_jax.utils.safe_files import opened, reading


def read_names(path: str | pathlib.Path) -> list[str]:
  """The names of clients in a text file, one a line; empty lines are left out.

  Raises `UserError` if it cannot be read, or names none.
  """
  names = [line.strip() for line in _text(path).splitlines()]
  return [name for name in names if name]


def read_trace(path: str | pathlib.Path) -> list[tuple[str, float, float]]:
  """When clients are available: (name, from, to) of each line.

  The file is CSV with the columns client, from and to, or JSONL with these keys (for
  the unit, see `selection.available`). Raises `UserError` if it is neither.
  """
  lines = [line for line in _text(path).splitlines() if line]
  with reading(path):
    if lines and lines[0].lstrip().startswith('{'):
      rows = [json.loads(line) for line in lines]
    else:
      rows = list(csv.DictReader(lines))
    return [(str(r['client']).strip(), float(r['from']), float(r['to'])) for r in rows]


def _text(path: str | pathlib.Path) -> str:
  with opened(pathlib.Path(path)) as file:
    return file.read().decode('utf-8-sig')
