"""Checkpoints of a run: whole states, written by Orbax, each with one digest."""

import contextlib
import functools
import hashlib
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging

from fesem_jax.run.results import files
from fesem_jax.run.results.files import saved_rounds
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check

_KEPT = 2  # Checkpoints: the newest, and one in case that it is damaged.


class Checkpoints:
  """The newest checkpoints of a workdir.

  Each is a folder `workdir/checkpoints/ROUND` that holds the state as Orbax writes it,
  and `sha256`, the digest of its files, which Orbax's CheckpointManager could not add
  before a checkpoint is final. Several processes save and restore together, each its
  own rows.
  """

  def __init__(self, workdir: pathlib.Path):
    self._workdir = workdir
    self._dir = (workdir / 'checkpoints').absolute()
    self._dir.mkdir(exist_ok=True)

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return processes.from_first(lambda: max(saved_rounds(self._workdir), default=None))

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state; a checkpoint exists whole or not at all."""
    if self.latest_round() == rounds_done:
      return
    name = f'.{rounds_done}.{secrets.token_hex(8)}.partial'
    partial = self._dir / processes.from_first(lambda: name)
    processes.from_first(lambda: partial.mkdir())
    items = self._orbax.args.PyTreeSave(_by_folder(jax.tree.map(_once, state)))
    with _quiet():
      self._checkpointer.save(partial / 'state', args=items)
    processes.barrier('saved')
    processes.from_first(lambda: self._finish(partial, rounds_done))

  def _finish(self, partial: pathlib.Path, rounds_done: int) -> None:
    """Makes a written state a checkpoint, and deletes those that it replaces."""
    files.sync(self._workdir)
    write_atomically(partial / 'sha256', _digest(partial / 'state'))
    partial.rename(self._dir / str(rounds_done))
    for old in saved_rounds(self._workdir)[:-_KEPT]:
      shutil.rmtree(self._dir / str(old), ignore_errors=True)

  def restore(self, like: Any) -> tuple[Any, int]:
    """The newest checkpoint's state, placed as `like`, and the rounds done there."""
    rounds_done = self.latest_round()
    assert rounds_done is not None
    return self.load(rounds_done, like), rounds_done

  def load(self, rounds_done: int, like: Any) -> Any:
    """The state of a checkpoint, placed as `like`; raises `UserError` if damaged."""
    folder = self._dir / str(rounds_done)
    processes.from_first(lambda: _check_digest(folder))
    abstract = _by_folder(jax.tree.map(self._orbax.utils.to_shape_dtype_struct, like))
    options = self._orbax.checkpoint_utils.construct_restore_args(abstract)
    items = self._orbax.args.PyTreeRestore(abstract, restore_args=options)
    with _quiet():
      restored = self._checkpointer.restore(folder / 'state', args=items)
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(restored))

  def close(self) -> None:
    """Releases Orbax's threads."""
    if '_checkpointer' in vars(self):
      self._checkpointer.close()

  @functools.cached_property
  def _orbax(self) -> Any:
    """Orbax, which is slow to import."""
    import orbax.checkpoint

    return orbax.checkpoint

  @functools.cached_property
  def _checkpointer(self) -> Any:
    # TensorStore 0.1.86 leaks 4 KiB a checkpoint with one file for all arrays (OCDBT).
    handler = self._orbax.PyTreeCheckpointHandler(use_ocdbt=False)
    return self._orbax.Checkpointer(handler)


def _once(x: Any) -> Any:
  """An array as one device holds it, where each device holds all of it.

  Orbax would have each device write a part of it, cut by a program for every shape.
  """
  if processes.count() > 1 or not isinstance(x, jax.Array):
    return x
  return x.addressable_data(0) if x.is_fully_replicated else x


def _by_folder(state: Any) -> dict[str, Any]:
  """Name of a folder -> array, in order; names of layers may hold any characters."""
  named = {}
  for i, (path, array) in enumerate(jax.tree_util.tree_leaves_with_path(state)):
    name = jax.tree_util.keystr(path, simple=True, separator='_')
    named[f'{i:06}_{re.sub(r"[^A-Za-z0-9_]", "_", name)[:100]}'] = array
  return named


def _digest(folder: pathlib.Path) -> str:
  """SHA-256 of the names and contents of all files in a folder."""
  digest = hashlib.sha256()
  for path in sorted(p for p in folder.rglob('*') if p.is_file()):
    digest.update(f'{path.relative_to(folder).as_posix()}\0'.encode())
    with path.open('rb') as file:
      digest.update(hashlib.file_digest(file, 'sha256').digest())
  return digest.hexdigest()


def _check_digest(folder: pathlib.Path) -> None:
  """Raises `UserError` if a checkpoint is damaged."""
  path = folder / 'sha256'
  saved = path.read_bytes() if path.is_file() else b''
  is_sound = saved == _digest(folder / 'state').encode()
  check(is_sound, f'{folder}: is corrupt (checksum mismatch); delete it and run again')


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps the log of Orbax from stderr."""

  def not_orbax(record):
    return 'orbax' not in pathlib.Path(record.pathname).parts

  logger = logging.get_absl_logger()
  logger.addFilter(not_orbax)
  try:
    yield
  finally:
    logger.removeFilter(not_orbax)
