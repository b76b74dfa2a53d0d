"""The table of clients that a workdir holds, read some lines at a time."""

import csv
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax.run.results.client_table import FIGURES, FILE, KINDS, ClientTable
from fesem_jax.utils.safe_files import reading

_BLOCK = 2**14  # Clients that are read at once.


def read(folder: pathlib.Path) -> ClientTable | None:
  """The table that a workdir holds; None where there is none."""
  path = folder / FILE
  if not path.exists():
    return None
  with reading(path), path.open(newline='', encoding='utf-8') as file:
    lines = csv.reader(file)
    head, *_ = itertools.islice(lines, 1)
    # Text of all of a million clients would take a gigabyte.
    blocks = iter(lambda: list(itertools.islice(lines, _BLOCK)), [])
    return _joined([_parsed(head, b) for b in blocks] or [_parsed(head, [])])


def _parsed(head: list[str], lines: list[list[str]]) -> ClientTable:
  """Some lines of a file as a table; columns without any value are None."""
  held = dict(zip(head, zip(*lines, strict=True), strict=True))
  *fields, honest, _, _ = ClientTable._fields
  known = [name for name in fields if name not in FIGURES]
  figures = [name for name in held if name.startswith(KINDS)]
  others = [name for name in held if name not in (*known, honest, *figures)]
  own = [name for name in figures if name not in FIGURES]
  columns: dict[str, Any] = dict.fromkeys((*fields, honest))
  columns['names'] = np.array(held['names'])
  for name in ('examples', 'test_examples', 'cluster'):
    if any(held[name]):
      columns[name] = np.array([int(x) for x in held[name]], np.int64)
  if any(held['true_cluster']):
    columns['true_cluster'] = _integers_or_names(held['true_cluster'])
  for name in figures:
    columns[name] = np.array([float(x) if x else np.nan for x in held[name]])
  if honest in held:
    columns[honest] = np.array([x == '1' for x in held[honest]])
  metrics = {name: columns.pop(name) for name in own} or None
  added = {name: _numbers(held[name]) for name in others}
  return ClientTable(**columns, metrics=metrics, added=added or None)


def _joined(parts: Sequence[ClientTable]) -> ClientTable:
  """The table of parts in a row."""
  if len(parts) == 1:
    return parts[0]
  of_blocks = [part.columns() for part in parts]

  def whole(name: str) -> np.ndarray | None:
    arrays = [columns[name] for columns in of_blocks]
    if all(x is None for x in arrays):
      return None
    blocks = [
      np.full(len(part.names), '') if x is None else x
      for part, x in zip(parts, arrays, strict=True)
    ]
    if len({x.dtype.kind for x in blocks}) > 1 and name == 'true_cluster':
      blocks = [np.array([str(cell) for cell in x.tolist()]) for x in blocks]
    return np.concatenate(blocks)  # Integers become float64 where a block has these.

  def together(names: Iterable[str]) -> dict[str, Any]:
    return {name: whole(name) for name in names}

  first = parts[0]
  return ClientTable(
    **together(name for name in of_blocks[0] if name in ClientTable._fields),
    metrics=together(first.metrics or ()) or None,
    added=together(first.added or ()) or None,
  )


def _numbers(column: tuple[str, ...]) -> np.ndarray:
  """Integers where all are written as such, else float64."""
  try:
    return np.array([int(x) for x in column], np.int64)
  except ValueError:
    return np.array([float(x) if x else np.nan for x in column])


def _integers_or_names(column: tuple[str, ...]) -> np.ndarray:
  """Integers where the column is written as such, else text."""
  try:
    numbers = np.array([int(x) for x in column], np.int64)
  except (ValueError, OverflowError):
    return np.array(column)
  return numbers if column == tuple(map(str, numbers)) else np.array(column)
