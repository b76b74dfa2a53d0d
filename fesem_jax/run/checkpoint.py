"""Checkpoints of a run: whole states, written by Orbax, with a digest of each file."""

import contextlib
import functools
import hashlib
import json
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import jax

from fesem_jax.run.configuration import check_same
from fesem_jax.run.orbax_calls import Unsound, quietly
from fesem_jax.run.results.metrics_file import records_of_checkpoint, saved_rounds
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

_KEPT = 2  # Checkpoints: the newest, and one in case that it is damaged.


class Checkpoints:
  """The newest checkpoints of a workdir.

  Each is a folder `workdir/checkpoints/ROUND` that holds the state as Orbax writes it,
  and `note.json`: the round, the configuration, the kinds of the arrays, and the
  SHA-256 of every file, of the records so far and of the note itself. A damaged one is
  refused; the one before it is there for a user who deletes it. Orbax's
  CheckpointManager would make a checkpoint final before these digests can be written
  into it.

  Several processes save and restore together, each its own rows; the first one writes
  and checks everything beside the state. `workdir` is an existing folder, the same in
  all processes. The run's `config` is saved with each checkpoint and compared with it.
  """

  def __init__(self, workdir: pathlib.Path, config: dict[str, Any]):
    self._workdir = workdir
    self._config = config
    self._dir = (workdir / 'checkpoints').absolute()
    try:
      self._dir.mkdir(exist_ok=True)
    except OSError as e:
      raise UserError(f'Cannot write {self._dir}: {e.strerror}.') from e

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return processes.from_first(lambda: max(saved_rounds(self._workdir), default=None))

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state; a checkpoint exists whole or not at all."""
    if self.latest_round() == rounds_done:
      return
    name = f'.{rounds_done}.{secrets.token_hex(8)}.partial'
    partial = self._dir / processes.from_first(lambda: name)
    with self._removed_on_failure(partial):
      processes.from_first(lambda: partial.mkdir())
      items = self._orbax.args.PyTreeSave(_by_folder(jax.tree.map(_once, state)))
      quietly(self._checkpointer.save, partial / 'state', args=items)
      processes.barrier('saved')
      processes.from_first(lambda: self._finish(partial, rounds_done, _kinds(state)))

  @contextlib.contextmanager
  def _removed_on_failure(self, partial: pathlib.Path) -> Iterator[None]:
    """Removes what is left of a checkpoint that cannot be written, and says why."""
    try:
      yield
    except processes.FirstProcessFailed:
      raise
    except (OSError, UserError, Unsound) as e:
      shutil.rmtree(partial, ignore_errors=True)
      reason = e.strerror if isinstance(e, OSError) else str(e).rstrip('.')
      raise UserError(
        f'Cannot save a checkpoint in {self._dir}: {reason}. Earlier checkpoints are '
        'intact; free some space and run the same command again.'
      ) from e

  def _finish(
    self, partial: pathlib.Path, rounds_done: int, arrays: dict[str, str]
  ) -> None:
    """Makes a written state a checkpoint, and deletes those that it replaces."""
    state = sorted(p for p in (partial / 'state').rglob('*') if p.is_file())
    note = {
      'round': rounds_done,
      'config': self._config,
      'arrays': arrays,
      'records': records_of_checkpoint(self._workdir),
      'files': {p.relative_to(partial).as_posix(): _digest(p) for p in state},
    }
    text = json.dumps(note | {'digest': _digest_of_note(note)}, indent=1)
    write_atomically(partial / 'note.json', text + '\n')
    partial.rename(self._dir / str(rounds_done))
    for old in saved_rounds(self._workdir)[:-_KEPT]:
      shutil.rmtree(self._dir / str(old), ignore_errors=True)

  def check_config(self) -> None:
    """Compares the configuration with that of the newest checkpoint."""
    if saved := saved_rounds(self._workdir):
      check_same(self._workdir, self._note(saved[-1])['config'], self._config)

  def restore(self, like: Any) -> tuple[Any, int]:
    """The newest checkpoint's state, and the rounds done there.

    `like` has the shapes, dtypes and shardings to restore to. Raises `UserError` if it
    is damaged.
    """
    rounds_done = self.latest_round()
    assert rounds_done is not None
    processes.from_first(lambda: self._check(rounds_done, _kinds(like)))
    return self._load(rounds_done, like), rounds_done

  def load(self, rounds_done: int, like: Any) -> Any:
    """The state of one checkpoint; raises `UserError` if it is damaged."""
    self._check(rounds_done, _kinds(like))
    return self._load(rounds_done, like)

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

  def _damaged(self, rounds_done: int, reason: str) -> UserError:
    earlier = [r for r in saved_rounds(self._workdir) if r < rounds_done]
    remedy = 'put back a valid copy, or choose another `workdir`'
    if earlier:
      remedy = (
        'delete it and run the same command again, which goes on from round '
        f'{earlier[-1]}'
      )
    folder = self._dir / str(rounds_done)
    return UserError(f'Checkpoint {folder} is damaged ({reason}); {remedy}.')

  def _note(self, rounds_done: int) -> dict[str, Any]:
    """The note beside a state."""
    folder = self._dir / str(rounds_done)
    if (folder / 'default').exists():
      raise UserError(
        f'{folder} was saved by an older version of this package, without digests and '
        'its configuration, and cannot be checked; choose another `workdir`, or '
        'finish the run with that version.'
      )
    try:
      note = json.loads((folder / 'note.json').read_bytes().decode())
    except FileNotFoundError as e:
      raise self._damaged(rounds_done, 'note.json is missing') from e
    except (OSError, ValueError, RecursionError) as e:
      raise self._damaged(rounds_done, f'note.json: {first_line(e)}') from e
    digest = note.pop('digest', None) if isinstance(note, dict) else None
    if digest is None or digest != _digest_of_note(note):
      raise self._damaged(rounds_done, 'note.json is not what was saved')
    if note['round'] != rounds_done:
      raise self._damaged(rounds_done, f'it was saved as round {note["round"]}')
    return note

  def _check(self, rounds_done: int, arrays: dict[str, str]) -> None:
    """Compares a checkpoint with its note and this run."""
    folder, note = self._dir / str(rounds_done), self._note(rounds_done)
    check_same(self._workdir, note['config'], self._config)
    for name, digest in note['files'].items():
      try:
        actual = _digest(folder / name)
      except OSError as e:
        raise self._damaged(rounds_done, f'{name}: {e.strerror}') from e
      if actual != digest:
        raise self._damaged(rounds_done, f'{name} is not what was saved')
    if note['arrays'] != arrays:
      raise UserError(
        f'Checkpoint {folder} holds arrays of other shapes than this run: the number '
        'of devices changed, and one of the two does not divide 8, or it belongs to '
        'another version of this package. Resume with the original number of devices.'
      )

  def _load(self, rounds_done: int, like: Any) -> Any:
    """The state of a checkpoint that was found sound."""
    folder = self._dir / str(rounds_done)
    abstract = jax.tree.map(self._orbax.utils.to_shape_dtype_struct, like)
    if not (folder / 'state' / 'manifest.ocdbt').exists():  # In all but older ones.
      abstract = _by_folder(abstract)
    options = self._orbax.checkpoint_utils.construct_restore_args(abstract)
    items = self._orbax.args.PyTreeRestore(abstract, restore_args=options)
    try:
      restored = quietly(self._checkpointer.restore, folder / 'state', args=items)
    except Unsound as e:  # Not for damage, but for lack of memory, say.
      raise UserError(f'Checkpoint {folder} is sound but cannot be read: {e}.') from e
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(restored))


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


def _kinds(state: Any) -> dict[str, str]:
  """Path of each array -> its dtype and shape."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {jax.tree_util.keystr(path): f'{x.dtype}{list(x.shape)}' for path, x in leaves}


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _digest_of_note(note: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
