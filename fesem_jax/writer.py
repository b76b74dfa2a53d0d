"""Metrics of a run: JSON lines, and TensorBoard on request."""

import contextlib
import importlib.util
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fesem_jax.base import UserError


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A file to write that takes the place of `path` once it is whole."""
  partial = path.with_name('.partial.' + path.name)
  try:
    yield partial
    os.replace(partial, path)
  except OSError as e:
    raise UserError(
      f'Cannot write {path}: {e.strerror}. What was there before is unchanged.'
    ) from e
  finally:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a whole file or nothing; readers never see half of one.

  Raises:
    UserError: if the file cannot be written, e.g. on a full disk.
  """
  with _replacing(path) as partial:
    partial.write_text(text)


def write_arrays_atomically(
  path: pathlib.Path, arrays: dict[str, np.ndarray], compress: bool = True
) -> None:
  """Writes an .npz as a whole or not at all; raises `UserError`."""
  save = np.savez_compressed if compress else np.savez
  with _replacing(path) as partial, partial.open('wb') as f:
    save(f, allow_pickle=False, **arrays)  # type: ignore[arg-type]


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
  """Records of a metrics.jsonl; a last line cut short by a crash is left out."""
  records = []
  if path.exists():
    for line in path.read_text().splitlines():
      try:
        records.append(json.loads(line))
      except json.JSONDecodeError:
        break
  return records


class MetricsWriter:
  """Keeps the records of a run, one per round, and appends them to files.

  Args:
    workdir: existing folder that gets `metrics.jsonl`; None keeps them in
      memory only.
    rounds_done: records of later rounds, left by a run that was stopped after
      its last checkpoint, are dropped; 0 drops all.
    tensorboard: also write scalars to `workdir/tensorboard/`.

  Attributes:
    records: all records so far.

  Raises:
    UserError: if TensorBoard is asked for but tensorboardX is not installed, or
      the files cannot be written.
  """

  def __init__(
    self, workdir: pathlib.Path | None, rounds_done: int = 0, tensorboard: bool = False
  ):
    self.records: list[dict[str, Any]] = []
    self._path = self._file = self._board = None
    if workdir is None:
      return
    self._path = path = workdir / 'metrics.jsonl'
    if rounds_done:
      old = read_metrics(path)
      self.records = [r for r in old if r['round'] <= rounds_done]
      if not self.records or self.records[-1]['round'] != rounds_done:
        raise UserError(
          f'{path} does not reach round {rounds_done} of the checkpoint beside it; '
          'choose another --workdir.'
        )
    write_atomically(path, ''.join(_line(r) for r in self.records))
    self._file = path.open('a')
    if tensorboard:
      self._board = _summary_writer(workdir / 'tensorboard', rounds_done + 1)

  def write(self, record: dict[str, Any]) -> None:
    """Adds one round's record; it is on disk when this returns."""
    self.records.append(record)
    if self._file is not None:
      try:
        self._file.write(_line(record))
        self._file.flush()
      except OSError as e:
        raise UserError(f'Cannot write {self._file.name}: {e.strerror}.') from e
    if self._board is not None:
      for name, value in _scalars('', record):
        self._board.add_scalar(name, value, record['round'])
      self._board.flush()

  def amend(self, addition: dict[str, Any]) -> None:
    """Adds entries to the last record."""
    self.records[-1] |= addition
    if self._path is not None:
      assert self._file is not None
      self._file.close()
      write_atomically(self._path, ''.join(_line(r) for r in self.records))
      self._file = self._path.open('a')

  def close(self) -> None:
    """Closes the files."""
    for file in (self._file, self._board):
      if file is not None:
        with contextlib.suppress(OSError):
          file.close()


def check_tensorboard(wanted: bool) -> None:
  """Raises `UserError` if TensorBoard is wanted but tensorboardX is missing."""
  if wanted and importlib.util.find_spec('tensorboardX') is None:
    raise UserError("--tensorboard needs tensorboardX: pip install 'fesem_jax[plots]'.")


def _summary_writer(folder: pathlib.Path, purge_step: int) -> Any:
  check_tensorboard(True)
  import tensorboardX  # An optional dependency.

  return tensorboardX.SummaryWriter(str(folder), purge_step=purge_step)


def _line(record: dict[str, Any]) -> str:
  return json.dumps(record) + '\n'


def _scalars(prefix: str, value: Any):
  """Every number in a nested record as (path, value)."""
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from _scalars(f'{prefix}/{key}' if prefix else key, inner)
  elif isinstance(value, list):
    for i, inner in enumerate(value):
      yield from _scalars(f'{prefix}/{i}', inner)
  elif isinstance(value, int | float) and prefix != 'round':
    yield prefix, value
