"""The files of a run: config.json, metrics.jsonl, summary.json and clients.npz.

`client_table` writes clients.csv, and `saved_models` models.npz.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from fesem_jax.run.results import client_table, saved_models
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, fetched
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_arrays_atomically, write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

Portrait = dict[str, np.ndarray]


def saved_rounds(workdir: pathlib.Path) -> list[int]:
  """Rounds that a workdir has checkpoints of, sound or not, in order."""
  try:
    names = [p.name for p in (workdir / 'checkpoints').iterdir() if p.is_dir()]
  except OSError:
    return []
  return sorted(int(name) for name in names if name.isdecimal())


def read_object(path: pathlib.Path) -> Record | None:
  """Content of a JSON file of a workdir; None where there is none."""
  if not path.exists():
    return None
  with reading(path):
    return dict(json.loads(path.read_bytes()))


def read_portrait(workdir: pathlib.Path) -> Portrait:
  """The arrays of clients.npz, {} where there is none."""
  path = workdir / 'clients.npz'
  return read_npz(path) if path.exists() else {}


def read_metrics(path: pathlib.Path, rounds: int | None = None) -> list[Record]:
  """Records until the round `rounds`, without a last line cut short."""
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
  """Keeps the records of a run, one per round, in `records` and in metrics.jsonl.

  Of several processes, all keep the records and the first one writes. `workdir` is an
  existing folder; None keeps them in memory only. Records of rounds after
  `rounds_done`, left by a run that was stopped after its last checkpoint, are dropped.
  """

  def __init__(self, workdir: pathlib.Path | None, rounds_done: int = 0):
    self._path = path = None if workdir is None else workdir / 'metrics.jsonl'
    self.records: list[Record] = []
    if path is not None:
      self.records = processes.from_first(lambda: _begun(path, rounds_done))

  def write(self, record: Record) -> None:
    """Adds one round's record; it is in the file when this returns."""
    self.records.append(record)

    def append(path: pathlib.Path) -> None:
      with open(path, 'a', opener=_not_a_link) as file:
        file.write(_lines([record]))

    self._on_disk(append)

  def amend(self, addition: Record) -> None:
    """Adds entries to the last record."""
    self.records[-1] |= addition
    self._on_disk(lambda path: write_atomically(path, _lines(self.records)))

  def _on_disk(self, change: Callable[[pathlib.Path], None]) -> None:
    if (path := self._path) is not None:
      processes.from_first(lambda: change(path))


def _begun(path: pathlib.Path, rounds_done: int) -> list[Record]:
  """The records of the rounds that are done, to which the file is cut."""
  records = read_metrics(path, rounds_done) if rounds_done else []
  last = records[-1]['round'] if records else 0
  check(last == rounds_done, f'{path}: ends before round {rounds_done}')
  # A finished run is read again where nothing can be written.
  if not path.exists() or path.read_bytes() != _lines(records).encode():
    write_atomically(path, _lines(records))
  return records


def _not_a_link(path: str, flags: int) -> int:
  return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _lines(records: Sequence[Record]) -> str:
  return ''.join(json.dumps(record) + '\n' for record in records)


def read_result(
  folder: pathlib.Path, history: Sequence[Record], make_portrait: bool
) -> tuple[Record, 'DataFrame', Portrait] | None:
  """The files of a workdir after the last round of `history`; None unless whole."""
  last, names = history[-1], ['clients.csv'] + ['clients.npz'] * make_portrait

  def is_whole() -> bool:
    rounds = (read_object(folder / 'summary.json') or {}).get('rounds')
    exist = all((folder / name).exists() for name in names)
    return exist and 'deployed' in last and rounds == last['round']

  if not processes.from_first(is_whole):
    return None
  summary, clients = read_object(folder / 'summary.json'), client_table.read(folder)
  assert summary is not None
  assert clients is not None
  return summary, clients, read_portrait(folder)


def write_result(
  folder: pathlib.Path,
  result: Any,
  portrait: Portrait,
  save_models: bool | None,
  before: Record | None = None,
) -> None:
  """Writes a `Result`, the summary last; of one read `before`, what lacks."""
  if before is None:  # That of fewer rounds is not one of the files below.
    processes.from_first(lambda: (folder / 'summary.json').unlink(missing_ok=True))
  _write_models(folder, result, save_models)
  processes.from_first(lambda: _write(folder, result, portrait, before))


def _write(
  folder: pathlib.Path, result: Any, portrait: Portrait, before: Record | None
) -> None:
  if before is None:
    client_table.write(folder, result.clients)
    if portrait:
      write_arrays_atomically(folder / 'clients.npz', portrait)
    else:  # One of fewer rounds may exist.
      saved_models.remove(folder, 'clients.npz')
  texts = [json.dumps(x, sort_keys=True) for x in (before, result.summary)]
  if texts[0] != texts[1]:
    _write_summary(folder, result.summary)


def add_to_summary(folder: pathlib.Path, summary: Record, addition: Record) -> None:
  """Adds entries to the summary of a `Result` in place, and new ones to its file."""
  if all(name in summary and summary[name] == x for name, x in addition.items()):
    return
  summary |= addition
  processes.from_first(lambda: _write_summary(folder, summary))


def _write_summary(folder: pathlib.Path, summary: Record) -> None:
  write_atomically(folder / 'summary.json', json.dumps(summary, indent=1) + '\n')


def _write_models(folder: pathlib.Path, result: Any, save_models: bool | None) -> None:
  """Writes the deployed models, if the workdir lacks and is to have them."""
  rounds = result.summary['rounds']

  def is_written() -> bool:
    is_whole = saved_models.is_of(folder, rounds)
    if not is_whole:
      saved_models.remove(folder)  # Of fewer rounds, or of another run.
    return is_whole

  if processes.from_first(is_written) or save_models is False:
    return
  used, gib = result.deploy(), 2**30
  size = saved_models.num_bytes(used, len(result.places))
  if save_models is None and size > saved_models.MAX_BYTES:
    text = 'models.npz: %.1f GiB, not saved; run again with save_models=True'
    logging.warning(text, size / gib)
    return
  names, examples = result.clients['client'].to_numpy(str), Examples.of(result.arranged)
  models = DeployedModels.of(fetched(used, result.places), names, examples)
  processes.from_first(lambda: saved_models.write(folder, models, rounds))
