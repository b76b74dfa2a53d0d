"""Results of a run, as bytes that two runs of one command must share."""

import hashlib
import json
import pathlib
import re
import zipfile
from typing import Any

import numpy as np

# What of a record or a summary tells of time and machine.
_VOLATILE = {'seconds', 'timing', 'memory', 'commit', 'versions', 'device'}
# What of a configuration may change from command to command, and changes no figure.
_FREE = {'rounds', 'patience'}
_SECONDS = re.compile(r'second|s/round|s / FedAvg')


def of(workdir: pathlib.Path) -> dict[str, str]:
  """Path of each file below a workdir that holds figures -> a digest of what it says.

  Pages and drawings are listed by name only: they hold times, or say nothing more.
  """
  digests = {}
  for path in sorted(p for p in workdir.rglob('*') if p.is_file()):
    name = path.relative_to(workdir).as_posix()
    if '.partial' in name or path.name == '.lock':
      digests[name] = 'left over' if '.partial' in name else 'lock'
    elif 'checkpoints' in path.parts:
      continue  # Times and random names are in them; what follows from them is below.
    elif path.suffix == '.jsonl':
      digests[name] = _digest([_lasting(json.loads(r)) for r in path.open()])
    elif path.name == 'config.json':
      held = json.loads(path.read_bytes())
      digests[name] = _digest({k: held[k] for k in held if k not in _FREE})
    elif path.suffix == '.json':
      digests[name] = _digest(_lasting(json.loads(path.read_bytes())))
    elif path.suffix == '.npz':
      digests[name] = _of_arrays(path)
    elif path.name in ('table.csv', 'table.md'):
      digests[name] = _digest(_without_seconds(path))
    elif path.suffix in ('.csv', '.parquet'):  # Those of table.tex are in table.csv.
      digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
      digests[name] = 'there'
  return digests


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
  """Files in which two runs differ."""
  return sorted(n for n in one.keys() | other.keys() if one.get(n) != other.get(n))


def _of_arrays(path: pathlib.Path) -> str:
  try:
    with np.load(path) as held:
      return _digest({n: _text(held[n]) for n in sorted(held.files)})
  # Of a damaged archive, zipfile may find a version or method that it does not have.
  except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as e:
    return f'damaged: {type(e).__name__}'


def _lasting(value: Any) -> Any:
  if isinstance(value, list):
    return [_lasting(v) for v in value]
  if isinstance(value, dict):
    kept = (k for k in value if k not in _VOLATILE and not _SECONDS.search(k))
    return {k: _lasting(value[k]) for k in kept}
  return value


def _without_seconds(path: pathlib.Path) -> list[list[str]]:
  """The cells of the tables of a file, without the columns of seconds."""
  apart = ',' if path.suffix == '.csv' else '|'
  rows = [line.split(apart) for line in path.read_text().splitlines()]
  kept_rows: list[list[str]] = []
  dropped: set[int] = set()
  for row, following in zip(rows, [*rows[1:], []], strict=True):
    # The first row of a CSV file; in Markdown, what a row of dashes follows.
    if not kept_rows or (len(following) > 1 and set(''.join(following)) <= set('-: ')):
      dropped = {i for i, cell in enumerate(row) if _SECONDS.search(cell)}
    kept_rows.append([c for i, c in enumerate(row) if i not in dropped])
  return kept_rows


def _text(array: np.ndarray) -> str:
  kind = f'{array.dtype.str} {array.shape} '
  return kind + hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _digest(value: Any) -> str:
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
