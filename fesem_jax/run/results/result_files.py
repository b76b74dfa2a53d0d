"""The result that a run leaves in its workdir."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from absl import logging

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results import (
  client_table,
  metrics_file,
  saved_models,
)
from fesem_jax.run.results.deployed_models import Examples
from fesem_jax.run.results.records import Record
from fesem_jax.run.results.result import Result
from fesem_jax.utils import atomic_files, processes

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

_Value = TypeVar('_Value')


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
  summary = metrics_file.read_summary(folder)
  if summary is None:
    return None
  if summary.get('rounds') != history[-1]['round'] or 'deployed' not in history[-1]:
    return None
  picture = metrics_file.read_clients(folder)
  return None if make_portrait and not picture else (summary, picture)


def read_clients(folder: pathlib.Path) -> 'DataFrame | None':
  """The figures of each client; None where they are missing."""
  return _as_first_finds(lambda: client_table.read(folder))


def write_result(
  folder: pathlib.Path,
  result: Result,
  picture: dict[str, np.ndarray],
  save_models: bool | None,
  held: Record | None = None,
  has_clients: bool = False,
) -> None:
  """Writes a result, the summary last; of one that was read, what the workdir lacks.

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
  result: Result,
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
    atomic_files.write_arrays_atomically(folder / 'clients.npz', picture)
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
  atomic_files.write_atomically(folder / 'summary.json', text)


def _models_to_write(
  folder: pathlib.Path, result: Result, save_models: bool | None
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
