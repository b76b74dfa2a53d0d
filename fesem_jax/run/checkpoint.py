"""Checkpoints of a run: whole states, written by Orbax."""

import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging

from fesem_jax.utils import processes

_KEPT = 2  # The newest, and one in case that its files are lost.


def saved_rounds(workdir: pathlib.Path) -> list[int]:
  """Rounds that a workdir has checkpoints of, sound or not, in order."""
  try:
    names = [p.name for p in (workdir / 'checkpoints').iterdir() if p.is_dir()]
  except OSError:
    return []
  return sorted(int(name) for name in names if name.isdecimal())


class Checkpoints:
  """The newest checkpoints of a workdir, `workdir/checkpoints/ROUND`, and their states.

  Several processes save and load together, each its own rows.
  """

  def __init__(self, workdir: pathlib.Path):
    self._workdir = workdir
    self._dir = (workdir / 'checkpoints').absolute()
    self._dir.mkdir(exist_ok=True)

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return processes.from_first(lambda: max(saved_rounds(self._workdir), default=None))

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state, whole or not at all, and deletes older checkpoints."""
    if self.latest_round() == rounds_done:
      return
    processes.from_first(self._sync)
    items = self._orbax.args.PyTreeSave(_by_folder(jax.tree.map(_once, state)))
    with _quiet():
      self._checkpointer.save(self._dir / str(rounds_done), args=items)
    processes.from_first(self._delete_older)

  def _sync(self) -> None:
    """Brings metrics.jsonl to the disk, which has no fewer rounds than a checkpoint."""
    metrics = self._workdir / 'metrics.jsonl'
    with contextlib.suppress(FileNotFoundError), metrics.open() as file:
      os.fsync(file.fileno())

  def _delete_older(self) -> None:
    for old in saved_rounds(self._workdir)[:-_KEPT]:
      shutil.rmtree(self._dir / str(old), ignore_errors=True)

  def load(self, rounds_done: int, like: Any) -> Any:
    """The state of a checkpoint, placed as `like`."""
    abstract = _by_folder(jax.tree.map(self._orbax.utils.to_shape_dtype_struct, like))
    options = self._orbax.checkpoint_utils.construct_restore_args(abstract)
    items = self._orbax.args.PyTreeRestore(abstract, restore_args=options)
    with _quiet():
      restored = self._checkpointer.restore(self._dir / str(rounds_done), args=items)
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
  # Each device would write a part of it, which a program cuts for every shape.
  if processes.count() > 1 or not isinstance(x, jax.Array):
    return x
  return x.addressable_data(0) if x.is_fully_replicated else x


def _by_folder(state: Any) -> dict[str, Any]:
  """Folder -> array; names of layers may hold any characters."""
  return {f'{i:06}': x for i, x in enumerate(jax.tree.leaves(state))}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps the log of Orbax from stderr."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)
