"""Files of a run: reading them, and writing metrics as JSON lines."""

import contextlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading


def saved_rounds(workdir: pathlib.Path) -> list[int]:
  """Rounds that a workdir has checkpoints of, sound or not, in order."""
  try:
    names = [p.name for p in (workdir / 'checkpoints').iterdir() if p.is_dir()]
  except OSError:
    return []
  return sorted(int(name) for name in names if name.isdecimal())


def read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Content of config.json; None where there is none."""
  return read_object(workdir / 'config.json')


def read_summary(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Content of summary.json; None where there is none."""
  return read_object(workdir / 'summary.json')


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Content of a JSON file of a workdir; None where there is none."""
  if not path.exists():
    return None
  with reading(path):
    return dict(json.loads(path.read_bytes()))


def read_clients(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of clients.npz; none where there is no such file."""
  path = workdir / 'clients.npz'
  return read_npz(path) if path.exists() else {}


def read_metrics(path: pathlib.Path, rounds: int | None = None) -> list[dict[str, Any]]:
  """Records of a metrics.jsonl, until the round `rounds`.

  A last line cut short by a crash is left out. An absent file has no records.
  """
  if not path.exists():
    return []
  with reading(path):
    records = [json.loads(line) for line in path.read_bytes().split(b'\n')[:-1]]
    return [r for r in records if rounds is None or r['round'] <= rounds]


def sync(workdir: pathlib.Path) -> None:
  """Brings metrics.jsonl to the disk, so that no checkpoint has more rounds than it."""
  with contextlib.suppress(FileNotFoundError), (workdir / 'metrics.jsonl').open() as f:
    os.fsync(f.fileno())


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
      self.records = read_metrics(path, rounds_done)
      last = self.records[-1]['round'] if self.records else 0
      check(last == rounds_done, f'{path}: ends before round {rounds_done}')
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
    self._file = self._file or _open_to_append(self._file_path())
    self._file.write(_line(record))
    self._file.flush()

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
