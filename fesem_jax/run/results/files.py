"""The files of a run: config.json, metrics.jsonl, summary.json and clients.npz.

`client_table` writes clients.csv, and `saved_models` models.npz.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import numpy as np
from absl import logging

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results import client_table, saved_models
from fesem_jax.run.results.deployed_models import Examples
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_arrays_atomically, write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

_Value = TypeVar('_Value')


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


def read_portrait(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of clients.npz, {} where there is none."""
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


def read_result(
  folder: pathlib.Path, history: Sequence[Record], make_portrait: bool
) -> tuple[Record, dict[str, np.ndarray]] | None:
  """The summary and the portrait that a workdir holds, read by all processes.

  None if they are missing or of fewer rounds, so that they are to be made from the
  state. Raises `UserError` if they are damaged.
  """
  return _as_first_finds(lambda: _read_result(folder, history, make_portrait))


def _as_first_finds(read: Callable[[], _Value | None]) -> _Value | None:
  """The file as every process reads it, or None where the first process finds none."""
  values: list[_Value | None] = []

  def look() -> bool:
    values.append(read())
    return values[0] is not None

  if not processes.from_first(look):
    return None
  return values[0] if values else read()


def _read_result(
  folder: pathlib.Path, history: Sequence[Record], make_portrait: bool
) -> tuple[Record, dict[str, np.ndarray]] | None:
  summary = read_summary(folder)
  if summary is None:
    return None
  if summary.get('rounds') != history[-1]['round'] or 'deployed' not in history[-1]:
    return None
  picture = read_portrait(folder)
  return None if make_portrait and not picture else (summary, picture)


def read_clients(folder: pathlib.Path) -> 'DataFrame | None':
  """The figures of each client; None where they are missing."""
  return _as_first_finds(lambda: client_table.read(folder))


def write_result(
  folder: pathlib.Path,
  result: Any,
  picture: dict[str, np.ndarray],
  save_models: bool | None,
  held: Record | None = None,
  has_clients: bool = False,
) -> None:
  """Writes a `Result`, the summary last; of one that was read, what the workdir lacks.

  `picture` is the portrait of the clients, empty where none is to be written. `held` is
  the summary that was read, before callbacks added to it, and `has_clients`
  says whether the table of clients was read. Of several processes, all give their part
  of the models, and the first one writes.
  """
  models = _models_to_write(folder, result, save_models)
  processes.from_first(
    lambda: _write(folder, result, picture, models, held, has_clients)
  )


def _write(
  folder: pathlib.Path,
  result: Any,
  picture: dict[str, np.ndarray],
  models: ClientModels | None,
  held: Record | None,
  has_clients: bool,
) -> None:
  if held is None:  # A summary of fewer rounds is not one of the files below.
    (folder / 'summary.json').unlink(missing_ok=True)
  if models is not None:
    saved_models.write(
      folder,
      models,
      result.places,
      result.clients['client'].to_numpy(str),
      Examples.of(result.arranged),
      result.summary['rounds'],
    )
  if not has_clients:
    client_table.write(folder, result.clients)
  texts = [json.dumps(x, sort_keys=True) for x in (held, result.summary)]
  if texts[0] == texts[1]:
    return
  if held is None and picture:
    write_arrays_atomically(folder / 'clients.npz', picture)
  elif held is None:  # One of fewer rounds may be there.
    saved_models.remove(folder, 'clients.npz')
  _write_summary(folder, result.summary)


def add_to_summary(folder: pathlib.Path, summary: Record, addition: Record) -> None:
  """Adds entries to the summary of a `Result` in place, and new ones to its file."""
  if all(name in summary and summary[name] == x for name, x in addition.items()):
    return
  summary |= addition
  processes.from_first(lambda: _write_summary(folder, summary))


def _write_summary(folder: pathlib.Path, summary: Record) -> None:
  text = json.dumps(summary, indent=1) + '\n'
  write_atomically(folder / 'summary.json', text)


def _models_to_write(
  folder: pathlib.Path, result: Any, save_models: bool | None
) -> ClientModels | None:
  """The deployed models on the host, if the workdir lacks and is to have them."""

  def has_them() -> bool:
    is_whole = saved_models.is_of(folder, result.summary['rounds'])
    if not is_whole:
      saved_models.remove(folder)  # Of fewer rounds, or of another run.
    return is_whole

  if processes.from_first(has_them) or save_models is False:
    return None
  used, count = result.deploy(), len(result.places)
  size = saved_models.num_bytes(used, count)
  if save_models is None and size > saved_models.MAX_BYTES:
    logging.warning(
      'models.npz: %.1f GiB, not saved; run again with save_models=True', size / 2**30
    )
    return None
  return processes.on_host(used)
