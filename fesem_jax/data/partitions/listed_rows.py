"""The rows of each client, from lists or from the files of other frameworks."""

import csv
import io
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.data.partitions.rows import Rows
from fesem_jax.utils import array_pickles
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.safe_files import opened, reading

# FedML's and NIID-Bench's net_dataidx_map.txt: `0: [`, numbers, `]` of each client.
_LISTED = re.compile(r'(\w+)\s*:\s*\[([^\[\]]*)\]')

# FedScale's, and that of TensorFlow Federated's Landmarks.
_CLIENT_COLUMNS = ('client_id', 'user_id')

_SPLITS = ('train', 'test', 'val', 'valid', 'validation')


class ClientRows(NamedTuple):
  """The rows of each client.

  Attributes:
    names: [M] of the clients; None if they are numbered.
    train: rows of each client, or all of them where `test` is None.
    test: test rows of each client; None where one list holds both.
  """

  names: list[str] | None
  train: Rows
  test: Rows | None


def read(given: Any) -> ClientRows:
  """Rows of each client, from a list or dict of lists, or from a file.

  The rows of a client are a list of numbers, or a dict of two lists, `train` and
  `test`. Files: JSON of either form; FedML's and NIID-Bench's net_dataidx_map (.txt);
  FL-bench's partition.pkl (`val` is left out), or any .pkl or .npy of lists; FedScale's
  .csv, in which the client of each row is in the column client_id or user_id. Raises
  `UserError` if `given` is none of these, a row is listed twice, or a client has no
  training rows.
  """
  where = '`client_rows`'
  if isinstance(given, str | os.PathLike):
    where = str(given)
    with reading(where):
      given = _of_file(pathlib.Path(given))
  if isinstance(given, Mapping) and 'data_indices' in given:  # FL-bench's.
    given = given['data_indices']
  names, entries = None, given
  if isinstance(given, Mapping):
    names, entries = [str(name) for name in given], list(given.values())
    _unique(zip(names, entries, strict=True))
    if names and {name.lower() for name in names} <= set(_SPLITS):
      raise UserError(
        f'{where} has {" and ".join(names)} in place of clients; give each client its '
        'own: {"name": {"train": [rows], "test": [rows]}}.'
      )
  entries = list(entries)
  if isinstance(entries[0], Mapping):
    train = [_numbers(e['train'], where, i) for i, e in enumerate(entries)]
    test = [_numbers(e['test'], where, i) for i, e in enumerate(entries)]
  else:
    train, test = [_numbers(e, where, i) for i, e in enumerate(entries)], None
  every, counts = np.unique(np.concatenate(train + (test or [])), return_counts=True)
  if (counts > 1).any():
    raise UserError(f'{where}: row {every[counts > 1][0]} is listed twice.')
  lacking = [i for i, rows in enumerate(train) if not len(rows)]
  if lacking:
    named = lacking[0] if names is None else names[lacking[0]]
    raise UserError(
      f'{where}: client {named} has no training rows; leave it out, or, if clients are '
      'split by user, list all of its rows and use `unseen_fraction`.'
    )
  return ClientRows(names, train, test)


def _numbers(values: Any, where: str, client: int) -> np.ndarray:
  try:
    rows = np.asarray(values)
  except ValueError:
    rows = np.asarray(None)
  rows = rows.astype(np.int64)
  if rows.min(initial=0) < 0:
    raise UserError(f'{where}: client {client} has row {rows.min()}; they are from 0.')
  return rows


def _of_file(path: pathlib.Path) -> Any:
  if path.suffix in ('.pkl', '.pickle'):
    return array_pickles.read_pickle(path)
  if path.suffix == '.npy':
    with opened(path) as file:
      return array_pickles.read_npy(file.read(), path)
  with opened(path) as file:
    text = file.read().decode('utf-8-sig')
  if path.suffix == '.csv':
    return _of_csv(text, path)
  if path.suffix == '.txt':
    return _unique(
      (name, [int(row) for row in rows.split(',') if row.strip()])
      for name, rows in _LISTED.findall(text)
    )
  return json.loads(text, object_pairs_hook=_unique)


def _of_csv(text: str, path: pathlib.Path) -> dict[str, list[int]]:
  """Client -> its rows; a line without a client would be a client, or shift rows."""
  lines = csv.reader(io.StringIO(text.rstrip('\r\n')))
  header = next(lines)
  columns = [header.index(name) for name in _CLIENT_COLUMNS if name in header]
  check(columns, f'{path}: lacks the column {" or ".join(_CLIENT_COLUMNS)}')
  clients: dict[str, list[int]] = {}
  for i, line in enumerate(lines):
    name = line[columns[0]] if columns[0] < len(line) else ''
    clients.setdefault(name, []).append(i)
  return clients


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
  """A dict of pairs; raises `UserError` on a name that occurs twice."""
  fields: dict[str, Any] = {}
  for name, value in pairs:
    if name in fields:
      raise UserError(f'`client_rows` has {name!r} twice; name each client once.')
    fields[name] = value
  return fields
