"""The clients of a round that --select names."""

import csv
import hashlib
import pathlib
from typing import Any

from fesem_jax.core import selection
from fesem_jax.core.selection import Selection
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import reading


def build(config: dict[str, Any], num_clients: int) -> int | Selection:
  """The `clients_per_round` of `simulate` that a configuration names, of M clients.

  Raises `UserError` on an unknown --select, or one that lacks another flag.
  """
  text = config.get('select', 'uniform')
  count = selection.cohort_size(config['clients_per_round'], num_clients)
  kind, _, value = text.partition(':')
  if text == 'uniform':
    return count
  if kind == 'power_of_choice':
    fits = value.isdecimal() and count
    check(fits, 'select: power_of_choice:CANDIDATES needs clients_per_round')
    return selection.power_of_choice(count, candidates=int(value))
  expected = 'uniform, power_of_choice:CANDIDATES or trace:FILE'
  check(kind == 'trace' and value, f'select: unknown {text!r}; expected {expected}')
  with reading(value), pathlib.Path(value).open(encoding='utf-8-sig') as file:
    rows = [
      (row['client'], float(row['from']), float(row['to']))
      for row in csv.DictReader(file)
    ]
    return selection.available(count, rows)


def identity(config: dict[str, Any]) -> dict[str, str]:
  """The digest of the file of clients that --select reads."""
  kind, _, path = config.get('select', '').partition(':')
  if kind != 'trace':
    return {}
  digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
  return {'select_digest': digest[:16]}
