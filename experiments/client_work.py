"""Local work of each client from a table, --client_work."""

import csv
import pathlib

import numpy as np

from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_work import ClientWork
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.errors import check

COLUMNS = ('rate', 'epochs', 'steps')


def read(path: str, schedule: Schedule, train: FederatedData) -> ClientWork | None:
  """The local work that a table of clients gives; None without a path.

  The table is a CSV file with a column `client`, names as in the data, and some of
  `COLUMNS`. Raises `UserError`, naming the file, on one that lacks a client.
  """
  if not path:
    return None
  with pathlib.Path(path).open(newline='', encoding='utf-8-sig') as file:
    reader = csv.DictReader(file)
    rows, columns = list(reader), tuple(reader.fieldnames or ())
  chosen = [name for name in columns if name in COLUMNS]
  fits = 'client' in columns and 0 < len(chosen) == len(columns) - 1
  check(fits, f'client_work: expected columns client and some of {", ".join(COLUMNS)}')
  by_name = {row['client']: row for row in rows}
  check(len(by_name) == len(rows), f'client_work: {path} names a client twice')
  names, ids = train.info.names.astype(str), np.asarray(train.client_ids)
  lacking = [name for name in names if name not in by_name]
  check(not lacking, f'client_work: {path} lacks client {"".join(lacking[:1])}')
  others = {'rate': 1, 'epochs': schedule.epochs, 'steps': schedule.steps}
  arrays: dict[str, np.ndarray] = {}
  for column in chosen:
    values = np.full(int(ids.max()) + 1, max(others[column], 1), np.float64)
    for name, place in zip(names, ids, strict=False):
      values[place] = float(by_name[name][column])
    arrays['rates' if column == 'rate' else column] = values
  return ClientWork(**arrays)
