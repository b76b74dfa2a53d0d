"""Files of a run: reading them, and writing metrics as JSON lines."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line, read_npz

SEAL = '.summary.sha256'  # Digests of what was written as summary.json.

# What every clients.npz holds; see `figure_data.draw`.
_PORTRAIT = {'names', 'truth', 'assignment', 'sampled', 'coordinates', 'variance'}


def saved_rounds(workdir: pathlib.Path) -> list[int]:
  """Rounds that a workdir has checkpoints of, sound or not, in order."""
  try:
    names = [p.name for p in (workdir / 'checkpoints').iterdir() if p.is_dir()]
  except OSError:
    return []
  return sorted(int(name) for name in names if name.isdecimal())


def damaged(path: pathlib.Path, reason: str) -> UserError:
  """A damaged file that a checkpoint, if there is one, can replace."""
  remedy = 'choose another `workdir`'
  if saved_rounds(path.parent):
    remedy = (
      'delete it and run the same command again, which restores it from the checkpoint'
    )
  return UserError(f'{path} is damaged ({reason}); {remedy}.')


def _reason(e: BaseException) -> str:
  """The message of an exception, in one line without the file's name."""
  if isinstance(e, OSError) and e.strerror:
    return e.strerror
  return first_line(e)


def read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Content of config.json; None where there is none."""
  return read_object(workdir / 'config.json')


def read_summary(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Content of summary.json; None where there is none.

  Raises `UserError` if it is damaged, or not what was written.
  """
  path = workdir / 'summary.json'
  summary = read_object(path)
  try:
    digests = (workdir / SEAL).read_text(errors='replace').split()
  except OSError:  # Of a run of an older version.
    return summary
  if summary is not None and digest_of_file(path) not in digests:
    raise damaged(path, 'it is not what was written')
  return summary


def digest_of_file(path: pathlib.Path) -> str:
  """SHA-256 of a file's content."""
  return hashlib.sha256(path.read_bytes()).hexdigest()


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Content of a JSON file of a workdir; None where there is none."""
  try:
    value = json.loads(path.read_bytes().decode())
  except FileNotFoundError:
    return None
  except (OSError, ValueError, RecursionError) as e:
    raise damaged(path, _reason(e)) from e
  if not isinstance(value, dict):
    raise damaged(path, 'it is not a JSON object')
  return value


def read_clients(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of clients.npz; none where there is no such file."""
  path = workdir / 'clients.npz'
  if not path.exists():
    return {}
  try:
    arrays = read_npz(path)
  except UserError as e:
    raise damaged(path, _reason(e.__cause__ or e)) from e
  if lacking := _PORTRAIT - arrays.keys():
    raise damaged(path, f'it lacks {min(lacking)}')
  if arrays['names'].ndim != 1:
    raise damaged(path, 'its names are no list')
  return arrays


def read_metrics(path: pathlib.Path, rounds: int | None = None) -> list[dict[str, Any]]:
  """Records of a metrics.jsonl, one round after the other.

  A last line cut short by a crash is left out, and so is all that follows the round
  `rounds`. An absent file has no records. Raises `UserError` if a line is no record of
  a round, or not of the round that follows.
  """
  records: list[dict[str, Any]] = []
  try:
    *lines, last = path.read_bytes().split(b'\n')
  except FileNotFoundError:
    return records
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}.') from e
  for number, line in enumerate([*lines, last] if last else lines, start=1):
    if records and records[-1]['round'] == rounds:
      break
    try:
      record = json.loads(line.decode())
    except (ValueError, RecursionError):
      if number > len(lines):
        break
      record = None
    round_number = record.get('round') if isinstance(record, dict) else None
    if type(round_number) is not int:
      fault = 'is no record of a round'
    elif records and round_number != records[-1]['round'] + 1:
      fault = f'is round {round_number}, the one before it round {records[-1]["round"]}'
    elif round_number not in (0, 1) and not records:
      fault = f'is round {round_number}, and those before it are missing'
    else:
      records.append(record)
      continue
    raise UserError(
      f'{path} is damaged: line {number} {fault}; restore a valid copy, or '
      'choose another `workdir` to start again.'
    )
  return records


def digest_of(records: Sequence[dict[str, Any]]) -> str:
  """SHA-256 of records as metrics.jsonl holds them."""
  return hashlib.sha256(''.join(map(_line, records)).encode()).hexdigest()


def records_of_checkpoint(workdir: pathlib.Path) -> dict[str, Any]:
  """The part of a checkpoint's note on metrics.jsonl, which is brought to the disk.

  `earlier` is the digest of all records but the `last`, to which the end of the run may
  add.
  """
  try:
    with (workdir / 'metrics.jsonl').open('rb') as file:
      os.fsync(file.fileno())  # A power cut must not leave fewer than the checkpoint.
      lines = file.readlines()
  except FileNotFoundError:
    lines = []
  if not lines:
    return {}
  earlier = hashlib.sha256(b''.join(lines[:-1])).hexdigest()
  return {'earlier': earlier, 'last': json.loads(lines[-1])}


def _records_at(path: pathlib.Path, rounds: int) -> list[dict[str, Any]]:
  """The records up to a checkpoint that was found sound, compared with its note."""
  records = read_metrics(path, rounds)
  if not records or records[-1]['round'] != rounds:
    raise UserError(
      f'{path} does not reach round {rounds} of the checkpoint beside it; put back a '
      'valid copy, or choose another `workdir`.'
    )
  note = read_object(path.parent / 'checkpoints' / str(rounds) / 'note.json') or {}
  kept = note.get('records')  # Absent in checkpoints of older versions.
  last = kept and {name: records[-1].get(name) for name in kept['last']}
  if kept and (digest_of(records[:-1]), last) != (kept['earlier'], kept['last']):
    raise UserError(
      f'{path} is damaged: it is not what was saved with the checkpoint of round '
      f'{rounds}; put back a valid copy, or choose another `workdir`.'
    )
  return records


class MetricsWriter:
  """Keeps the records of a run, one per round, in `records`, and appends them to files.

  Of several processes, all keep the records and the first one writes. `workdir` is an
  existing folder that gets `metrics.jsonl`; None keeps them in memory only. Records of
  rounds after `rounds_done`, left by a run that was stopped after its last checkpoint,
  are dropped; 0 drops all.
  """

  def __init__(self, workdir: pathlib.Path | None, rounds_done: int = 0):
    self.records: list[dict[str, Any]] = []
    self._path: pathlib.Path | None = None
    self._file: TextIO | None = None
    if workdir is not None:
      self._path = workdir / 'metrics.jsonl'
      self.records = processes.from_first(lambda: self._begin(rounds_done))

  def _begin(self, rounds_done: int) -> list[dict[str, Any]]:
    """The records so far, to which the file is cut."""
    path = self._file_path()
    if rounds_done:
      self.records = _records_at(path, rounds_done)
    # A finished run is read again where nothing can be written.
    text = self._text().encode()
    if not rounds_done or not path.exists() or path.read_bytes() != text:
      write_atomically(path, self._text())
    return self.records

  def write(self, record: dict[str, Any]) -> None:
    """Adds one round's record; it is on disk when this returns."""
    self.records.append(record)
    if self._path is not None:
      processes.from_first(lambda: self._append(record))

  def _append(self, record: dict[str, Any]) -> None:
    path = self._file_path()
    try:
      self._file = self._file or _open_to_append(path)
      self._file.write(_line(record))
      self._file.flush()
    except OSError as e:
      reason = 'it is a link' if e.errno == errno.ELOOP else e.strerror
      raise UserError(f'Cannot write {path}: {reason}.') from e

  def amend(self, addition: dict[str, Any]) -> None:
    """Adds entries to the last record."""
    self.records[-1] |= addition
    if self._path is not None:
      processes.from_first(self._rewrite)

  def _rewrite(self) -> None:
    if self._file is not None:
      self._file.close()
      self._file = None
    write_atomically(self._file_path(), self._text())

  def _file_path(self) -> pathlib.Path:
    assert self._path is not None
    return self._path

  def _text(self) -> str:
    return ''.join(_line(r) for r in self.records)

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      with contextlib.suppress(OSError):
        self._file.close()


def _open_to_append(path: pathlib.Path) -> TextIO:
  flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
  return os.fdopen(os.open(path, flags, 0o666), 'a')


def _line(record: dict[str, Any]) -> str:
  return json.dumps(record) + '\n'


def with_rounds_done(
  config: dict[str, Any], history: Sequence[dict[str, Any]]
) -> dict[str, Any]:
  """A configuration with the rounds that were done, if the run went on after it."""
  planned, done = config.get('rounds'), history[-1]['round'] if history else 0
  went_on = isinstance(planned, int) and done > planned
  return config | {'rounds': done} if went_on else config


def method_label(config: dict[str, Any]) -> str:
  """The method's name as the paper writes it, e.g. "fesem(4)"."""
  name = config.get('algorithm') or ''
  clusters = config.get('num_clusters')
  return f'{name}({clusters})' if name and clusters else name
