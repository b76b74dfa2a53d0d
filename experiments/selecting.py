"""The clients of a round that --select names."""

import hashlib
import pathlib
from typing import Any

from fesem_jax.core import selection
from fesem_jax.core.selection import Selection
from fesem_jax.data.client_lists import read_names, read_trace
from fesem_jax.utils.errors import check

_FILES = ('names', 'trace', 'trace_seconds')


def build(config: dict[str, Any]) -> int | Selection:
  """The `clients_per_round` of `simulate` that a configuration names.

  Raises `UserError` on an unknown --select, or one that lacks another flag.
  """
  text, count = config.get('select', 'uniform'), config['clients_per_round']
  kind, colon, value = text.partition(':')
  if kind == 'uniform' and not colon:
    return count
  if kind == 'power_of_choice':
    check(value.isdecimal(), 'select: give the candidates, as power_of_choice:30')
    check(count, 'select: power_of_choice needs clients_per_round')
    return selection.power_of_choice(count, candidates=int(value))
  expected = f'uniform, power_of_choice:CANDIDATES or {"|".join(_FILES)}:FILE'
  check(kind in _FILES and value, f'select: unknown {text!r}; expected {expected}')
  if kind == 'names':
    return selection.named(read_names(value), count)
  timed = kind != 'trace_seconds' or config.get('device_profile')
  check(timed, 'select: trace_seconds needs device_profile')
  unit = 'rounds' if kind == 'trace' else 'seconds'
  return selection.available(count, read_trace(value), unit=unit)


def identity(config: dict[str, Any]) -> dict[str, str]:
  """The digest of the file of clients that --select reads."""
  digests = {}
  kind, _, value = config.get('select', '').partition(':')
  if kind in _FILES:
    digests['select_digest'] = _digest(value)
  return digests


def _digest(path: str) -> str:
  return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]
