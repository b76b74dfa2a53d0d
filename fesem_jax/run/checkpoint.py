"""Checkpoints of a run: whole states, written by Orbax, each with one digest."""

import contextlib
import functools
import hashlib
import pathlib
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
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
  and `sha256`, the digest of the state's files. A damaged one is refused; the one
  before it is there for a user who deletes it. Orbax's CheckpointManager would make a
  checkpoint final before the digest can be written into it.

  Several processes save and restore together, each its own rows; the first one writes
  and checks everything beside the state. `workdir` is an existing folder, the same in
  all processes.
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
    """The newest checkpoint's state, and the rounds done there.

    `like` has the shapes, dtypes and shardings to restore to. Raises `UserError` if it
    is damaged.
    """
    rounds_done = self.latest_round()
    assert rounds_done is not None
    return self.load(rounds_done, like), rounds_done

  def load(self, rounds_done: int, like: Any) -> Any:
    """The state of one checkpoint; raises `UserError` if it is damaged."""
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
    # One folder an array: TensorStore 0.1.86 does not free what it converts to write
    # many arrays to one file (OCDBT), 4 KiB and more a checkpoint.
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
def _without_metrics() -> Iterator[None]:
  """Keeps Orbax from asking TensorStore for counts of bytes, which it only logs.

  TensorStore 0.1.86 does not free the lists of its answer, 17 KiB a checkpoint.
  """
  import tensorstore  # Slow to import, as Orbax is.

  name = 'experimental_collect_matching_metrics'
  collect = getattr(tensorstore, name)
  setattr(tensorstore, name, lambda *args, **kwargs: [])
  try:
    yield
  finally:
    setattr(tensorstore, name, collect)


def _but_of_closed_loops(show: Callable[..., Any]) -> Callable[..., Any]:
  """A `sys.unraisablehook` without what TensorStore's threads raise after a failure.

  Each write that was under way tells the event loop, which Orbax has closed by then.
  """

  def hook(raised: Any) -> None:
    e = raised.exc_value
    if not (isinstance(e, RuntimeError) and str(e) == 'Event loop is closed'):
      show(raised)

  return hook


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps the log of Orbax, and errors of its threads, from stderr."""

  def not_orbax(record):
    return 'orbax' not in pathlib.Path(record.pathname).parts

  logger, shown = logging.get_absl_logger(), sys.unraisablehook
  logger.addFilter(not_orbax)
  sys.unraisablehook = of_threads = _but_of_closed_loops(shown)
  try:
    with _without_metrics():
      yield
  except Exception:
    shown = of_threads  # They may raise it until the process ends.
    raise
  finally:
    logger.removeFilter(not_orbax)
    sys.unraisablehook = shown
