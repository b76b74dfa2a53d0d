"""The files of a run: config.json, metrics.jsonl, summary.json and clients.npz.

`client_table` writes clients.csv, and `saved_models` models.npz.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from fesem_jax.run.results import client_table, saved_models
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, fetched
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import replacing, write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

Portrait = dict[str, np.ndarray]


def read_object(path: pathlib.Path, kind: type = dict) -> Any:
  """Content of a JSON file of a workdir; None where there is none."""
  if not path.exists():
    return None
  with reading(path):
    return kind(json.loads(path.read_bytes()))


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


class MetricsWriter:
  """Keeps the records of a run, one per round, in `records` and in metrics.jsonl.

  All processes keep the records and the first one writes. `workdir` None keeps them in
  memory only. Records of rounds after `rounds_done`, the last checkpoint, are dropped.
  """

  def __init__(self, workdir: pathlib.Path | None, rounds_done: int = 0):
    self._path = path = None if workdir is None else workdir / 'metrics.jsonl'
    self.records: list[Record] = []
    if path is not None:
      self.records = processes.from_first(lambda: _begun(path, rounds_done))

  def write(self, record: Record) -> None:
    """Adds one round's record; it is in the file when this returns."""
    self.records.append(record)

    def append() -> None:
      if self._path is not None:
        with self._path.open('a') as file:
          file.write(_lines([record]))

    processes.from_first(append)

  def amend(self, addition: Record) -> None:
    """Adds entries to the last record."""
    self.records[-1] |= addition
    if (path := self._path) is not None:
      processes.from_first(lambda: write_atomically(path, _lines(self.records)))


def _begun(path: pathlib.Path, rounds_done: int) -> list[Record]:
  """The records of the rounds that are done, to which the file is cut."""
  records = read_metrics(path, rounds_done) if rounds_done else []
  last = records[-1]['round'] if records else 0
  check(last == rounds_done, f'{path}: ends before round {rounds_done}')
  # A finished run is read again where nothing can be written.
  if not path.exists() or path.read_bytes() != _lines(records).encode():
    write_atomically(path, _lines(records))
  return records


def _lines(records: Sequence[Record]) -> str:
  return ''.join(json.dumps(record) + '\n' for record in records)


def read_result(
  folder: pathlib.Path, history: Sequence[Record], make_portrait: bool
) -> tuple[Record, 'DataFrame', Portrait] | None:
  """The files of a workdir after the last round of `history`; None unless whole."""
  last, names = history[-1], ['clients.csv'] + ['clients.npz'] * make_portrait

  def read_whole() -> Record | None:
    summary = read_object(folder / 'summary.json') or {}
    exist = all((folder / name).exists() for name in names)
    is_whole = exist and 'deployed' in last and summary.get('rounds') == last['round']
    return summary if is_whole else None

  if (summary := processes.from_first(read_whole)) is None:
    return None
  clients = client_table.read(folder)
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

  def write() -> None:
    if before is None:
      client_table.write(folder, result.clients)
      (folder / 'clients.npz').unlink(missing_ok=True)  # Of fewer rounds.
      if portrait:
        with replacing(folder / 'clients.npz') as file:
          np.savez_compressed(file, allow_pickle=False, **portrait)
    texts = [json.dumps(x, sort_keys=True) for x in (before, result.summary)]
    if texts[0] != texts[1]:
      _write_summary(folder, result.summary)

  processes.from_first(write)


def add_to_summary(folder: pathlib.Path, summary: Record, addition: Record) -> None:
  """Adds entries to the summary of a `Result` in place, and new ones to its file."""
  if any(name not in summary or summary[name] != x for name, x in addition.items()):
    summary |= addition
    processes.from_first(lambda: _write_summary(folder, summary))


def _write_summary(folder: pathlib.Path, summary: Record) -> None:
  write_atomically(folder / 'summary.json', json.dumps(summary, indent=1) + '\n')


def _write_models(folder: pathlib.Path, result: Any, save_models: bool | None) -> None:
  """Writes the deployed models, if the workdir lacks and is to have them."""
  rounds, places = result.summary['rounds'], result.places
  if processes.from_first(lambda: saved_models.are_current(folder, rounds)):
    return
  used = result.deploy()
  if saved_models.are_wanted(used, len(places), save_models):
    about = result.clients['client'].to_numpy(str), Examples.of(result.arranged)
    models = DeployedModels.of(fetched(used, places), *about)
    processes.from_first(lambda: saved_models.write(folder, models, rounds))
  elif save_models is None:
    logging.warning('models.npz: too large, not saved; run with save_models=True')
