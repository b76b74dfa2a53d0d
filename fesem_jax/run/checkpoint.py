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
from absl import logging

from fesem_jax.results.metrics_file import COPY, keep_records, saved_rounds
from fesem_jax.run.configuration import check_same
from fesem_jax.run.orbax_calls import Unsound, quietly
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

_KEPT = 2  # Checkpoints: the newest, and one in case that it is damaged.


class Checkpoints:
  """The newest checkpoints of a workdir.

  Each is a folder `workdir/checkpoints/ROUND` that holds the state as Orbax writes it,
  a copy of the records so far, and `note.json`: the round, the configuration, the kinds
  of the arrays, and the SHA-256 of every file and of the note itself. Orbax's
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
      items = self._orbax.args.PyTreeSave(_by_folder(state))
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
    keep_records(self._workdir, partial)
    note = {
      'round': rounds_done,
      'config': self._config,
      'arrays': arrays,
      'files': _digests(partial),
    }
    text = json.dumps(note | {'digest': _digest_of_note(note)}, indent=1)
    write_atomically(partial / 'note.json', text + '\n')
    partial.rename(self._dir / str(rounds_done))
    for old in saved_rounds(self._workdir)[:-_KEPT]:
      shutil.rmtree(self._dir / str(old), ignore_errors=True)

  def check_config(self) -> None:
    """Compares the configuration with that of the newest readable checkpoint."""
    reasons = []
    for rounds_done in reversed(saved_rounds(self._workdir)):
      try:
        note = self._note(rounds_done)
      except Unsound as e:
        reasons.append(str(e))
        continue
      check_same(self._workdir, note['config'], self._config)
      return
    if reasons:
      raise self._none_left(reasons[0])

  def restore(self, like: Any) -> tuple[Any, int]:
    """The newest sound checkpoint's state, and the rounds done there.

    Damaged checkpoints newer than that are set aside, with a warning. `like` has the
    shapes, dtypes and shardings to restore to.
    """
    rounds_done = processes.from_first(lambda: self._newest_sound(_kinds(like)))
    return self._load(rounds_done, like), rounds_done

  def load(self, rounds_done: int, like: Any) -> Any:
    """The state of one checkpoint; raises `UserError` unless it is sound."""
    try:
      self._check(rounds_done, _kinds(like))
    except Unsound as e:
      folder = self._dir / str(rounds_done)
      raise UserError(f'Checkpoint {folder} is damaged: {e}; delete it.') from e
    return self._load(rounds_done, like)

  def _newest_sound(self, arrays: dict[str, str]) -> int:
    """Rounds done at the newest sound checkpoint; newer ones are set aside."""
    damaged: dict[int, str] = {}
    for rounds_done in reversed(saved_rounds(self._workdir)):
      try:
        self._check(rounds_done, arrays)
      except Unsound as e:
        damaged[rounds_done] = str(e)
        continue
      for bad, reason in damaged.items():
        logging.warning(
          'Checkpoint %s is damaged (%s), renamed to %s; resuming from round %d.',
          self._dir / str(bad),
          reason,
          self._set_aside(bad),
          rounds_done,
        )
      return rounds_done
    raise self._none_left(next(iter(damaged.values()), 'there is none'))

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

  def _none_left(self, reason: str) -> UserError:
    return UserError(
      f'No checkpoint in {self._dir} is sound ({reason}); nothing was changed: put '
      'back a sound one, or choose another `workdir`.'
    )

  def _note(self, rounds_done: int) -> dict[str, Any]:
    """What was noted beside a state; raises `Unsound`."""
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
      raise Unsound('note.json is missing') from e
    except (OSError, ValueError, RecursionError) as e:
      raise Unsound(f'note.json: {first_line(e)}') from e
    digest = note.pop('digest', None) if isinstance(note, dict) else None
    if digest is None or digest != _digest_of_note(note):
      raise Unsound('note.json is not what was saved')
    if note['round'] != rounds_done:
      raise Unsound(f'it was saved as round {note["round"]}')
    return note

  def _check(self, rounds_done: int, arrays: dict[str, str]) -> None:
    """Compares a checkpoint with its note and this run; raises `Unsound`."""
    folder, note = self._dir / str(rounds_done), self._note(rounds_done)
    check_same(self._workdir, note['config'], self._config)
    try:
      found = _digests(folder)
    except OSError as e:
      raise Unsound(f'{e.filename}: {e.strerror}') from e
    for name, digest in note['files'].items():
      if found.get(name) != digest:
        what = 'not what was saved' if name in found else 'missing'
        raise Unsound(f'{name} is {what}')
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
      found = quietly(self._checkpointer.restore, folder / 'state', args=items)
    except Unsound as e:  # Not for damage, but for lack of memory, say.
      raise UserError(f'Checkpoint {folder} is sound but cannot be read: {e}.') from e
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(found))

  def _set_aside(self, rounds_done: int) -> str:
    """Renames a checkpoint so that it is none, and says how it is called now."""
    aside = f'damaged_{rounds_done}_{secrets.token_hex(4)}'
    try:
      (self._dir / str(rounds_done)).rename(self._dir / aside)
    except OSError as e:
      raise UserError(
        f'Checkpoint {self._dir / str(rounds_done)} is damaged and cannot be renamed: '
        f'{e.strerror}.'
      ) from e
    return aside


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


def _digests(folder: pathlib.Path) -> dict[str, str]:
  """Path below `folder` of each file but the note -> SHA-256 of its content."""
  digests = {}
  for path in [*sorted((folder / 'state').rglob('*')), folder / COPY]:
    if path.is_file():
      with path.open('rb') as file:
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
      digests[path.relative_to(folder).as_posix()] = digest
  return digests


def _digest_of_note(note: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
