"""Local work of each client from a table, --client_work."""

import csv
import pathlib

import numpy as np

from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_work import ClientWork
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.errors import UserError, argument

COLUMNS = ('rate', 'epochs', 'steps')


def read(path: str, schedule: Schedule, train: FederatedData) -> ClientWork | None:
  """The local work that a table of clients gives; None without a path.

  The table is a CSV file with a column `client`, names as in the data, and some of
  `COLUMNS`. Raises `UserError`, naming the file, on one that lacks a client.
  """
  if not path:
    return None
  named = argument('client_work', path)
  try:
    with pathlib.Path(path).open(newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      rows, columns = list(reader), tuple(reader.fieldnames or ())
  except (OSError, UnicodeDecodeError, csv.Error) as e:
    raise UserError(f'{named} cannot be read as CSV: {e}.') from e
  given = [name for name in columns if name in COLUMNS]
  if 'client' not in columns or not given or len(given) + 1 != len(columns):
    raise UserError(
      f'{named} has the columns {", ".join(columns) or "none"}; it needs client and '
      f'some of {", ".join(COLUMNS)}, and no others.'
    )
  by_name = {row['client']: row for row in rows}
  if len(by_name) != len(rows):
    raise UserError(f'{named} names a client twice; give each one row.')
  names, ids = train.info.names.astype(str), np.asarray(train.client_ids)
  lacking = [name for name in names if name not in by_name]
  if lacking:
    raise UserError(f'{named} has no row of client {lacking[0]}; give each client one.')
  others = {'rate': 1, 'epochs': schedule.epochs, 'steps': schedule.steps}
  arrays: dict[str, np.ndarray] = {}
  for column in given:
    values = np.full(int(ids.max()) + 1, max(others[column], 1), np.float64)
    for name, place in zip(names, ids, strict=False):
      try:
        values[place] = float(by_name[name][column])
      except (TypeError, ValueError) as e:
        raise UserError(
          f'{named}: {column} of client {name} is {by_name[name][column]!r}, which is '
          'no number.'
        ) from e
    arrays['rates' if column == 'rate' else column] = values
  return ClientWork(**arrays)
