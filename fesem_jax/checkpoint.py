"""Whose a workdir is, and the checkpoints in it: whole states, digested, by Orbax."""

import contextlib
import errno
import fcntl
import gc
import hashlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from fesem_jax.atomic import write_atomically
from fesem_jax.base import UserError
from fesem_jax.data.files import first_line
from fesem_jax.writer import read_config, saved_rounds

# Flags that may change between two runs of one workdir: they decide where and
# how fast a run happens, how long it is and what is reported, not its results.
FREE_FLAGS = frozenset(
  [
    'workdir',
    'data_dir',
    'resume',
    'rounds',
    'clients_per_chunk',
    'num_devices',
    'tensorboard',
    'checkpoint_every',
    'patience',
  ]
)


# What a flag is in a version of this package that does not have it.
_NONE = 'no such flag'


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other runs out of a folder until the block ends.

  The lock belongs to the open file, so that the system releases it when the
  process dies; the file `.lock` stays behind and means nothing by itself.

  Args:
    folder: made if absent.

  Raises:
    UserError: if another run holds the folder, or it cannot be written.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _open_lock(folder / '.lock')
  except OSError as e:
    raise UserError(f'Cannot write to --workdir={folder}: {e.strerror}.') from e
  if descriptor is None:
    yield
    return
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    owner = os.pread(descriptor, 20, 0).decode(errors='replace') or 'unknown'
    os.close(descriptor)
    raise UserError(
      f'--workdir={folder} is in use by another run, process {owner}; wait for its '
      'end or choose another folder.'
    ) from e
  except OSError as e:  # Some network file systems have no locks.
    logging.warning(
      '%s cannot be locked (%s): make sure that no second run uses it.',
      folder,
      e.strerror,
    )
  else:
    with contextlib.suppress(OSError):  # A read-only or a full disk.
      os.ftruncate(descriptor, 0)
      os.pwrite(descriptor, str(os.getpid()).encode(), 0)
      for left_over in folder.glob('.*.partial'):  # Of a run that was killed.
        left_over.unlink()
  try:
    yield
  finally:
    os.close(descriptor)


def _open_lock(path: pathlib.Path) -> int | None:
  """A file to lock; None on a read-only disk that has none."""
  flags = os.O_NOFOLLOW | os.O_CLOEXEC
  try:
    return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
  except OSError as e:
    if e.errno not in (errno.EROFS, errno.EACCES):
      raise
  try:  # A finished run can be read there.
    return os.open(path, flags | os.O_RDONLY)
  except FileNotFoundError:
    return None


@contextlib.contextmanager
def claim_workdir(
  workdir: pathlib.Path, config: dict[str, Any], resume: bool
) -> Iterator['Checkpoints']:
  """Makes the folder this run's own until the block ends; gives its checkpoints.

  Args:
    workdir: made if absent.
    config: flag name -> value, as JSON would give it back.
    resume: whether an existing run may be continued.

  Raises:
    UserError: if the folder is in use, holds a run with another configuration,
      a run of which parts are missing, or a run at all while `resume` is False,
      or if it cannot be written.
  """
  with locked(workdir):
    old = read_config(workdir)
    saved = saved_rounds(workdir)
    left = [f for f in ('summary.json', 'clients.npz') if (workdir / f).exists()]
    if _has_content(workdir / 'metrics.jsonl'):
      left.append('metrics.jsonl')
    if not resume and (old is not None or saved or left):
      raise UserError(
        f'--workdir={workdir} already holds a run and --resume is off; choose '
        'another folder or delete this one.'
      )
    if old is not None:
      _check_same(workdir, old, config)
    elif not saved and left:
      raise _incomplete(workdir, left, 'neither config.json nor a checkpoint')
    # A run that was killed before its first checkpoint has made the folder.
    beginning = (workdir / 'checkpoints').is_dir() and left == ['metrics.jsonl']
    if left and not saved and not beginning:
      raise _incomplete(workdir, left, 'no checkpoint')
    with contextlib.closing(Checkpoints(workdir, config)) as checkpoints:
      if old is None:
        checkpoints.check_config()
        text = json.dumps(config, indent=1, sort_keys=True) + '\n'
        write_atomically(workdir / 'config.json', text)
      yield checkpoints


def _has_content(path: pathlib.Path) -> bool:
  return path.is_file() and path.stat().st_size > 0


def _incomplete(workdir: pathlib.Path, left: list[str], missing: str) -> UserError:
  return UserError(
    f'--workdir={workdir} holds {", ".join(sorted(left))} of a run but {missing}: the '
    'run cannot go on, and another would overwrite it; put back what is missing, or '
    'choose another folder.'
  )


def _check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `UserError` if two configurations are not of the same run."""
  differing = [
    f'--{name} (there: {old.get(name, _NONE)}, now: {config.get(name, _NONE)})'
    for name in sorted(set(old) | set(config))
    if name not in FREE_FLAGS and old.get(name) != config.get(name)
  ]
  if differing:
    raise UserError(
      f'--workdir={workdir} holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )


class _Unsound(Exception):  # noqa: N818 - becomes a warning or a UserError.
  """A checkpoint that cannot be what was saved."""


class Checkpoints:
  """The newest checkpoints of a workdir.

  Each is a folder `workdir/checkpoints/ROUND` of two items: the state, and a note
  with the configuration and a digest of every array.

  Args:
    workdir: existing folder.
    config: of the run, saved with each checkpoint and compared with it.
  """

  def __init__(self, workdir: pathlib.Path, config: dict[str, Any]):
    self._workdir = workdir
    self._config = config
    self._dir = (workdir / 'checkpoints').absolute()
    options = ocp.CheckpointManagerOptions(
      max_to_keep=2, create=True, enable_async_checkpointing=False
    )
    try:
      self._manager = _quietly(
        ocp.CheckpointManager, self._dir, item_names=('state', 'note'), options=options
      )
    except _Unsound as e:
      raise UserError(f'Cannot use {self._dir} for checkpoints: {e}') from e

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return self._manager.latest_step()

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state; a checkpoint exists whole or not at all.

    Raises:
      UserError: if it cannot be written, e.g. on a full disk; older
        checkpoints are untouched.
    """
    if self._manager.latest_step() == rounds_done:
      return
    note = {'round': rounds_done, 'config': self._config, 'arrays': _digests(state)}
    items = ocp.args.Composite(
      state=ocp.args.StandardSave(state),
      note=ocp.args.JsonSave(note | {'digest': _digest_of_note(note)}),
    )
    try:
      _quietly(self._manager.save, rounds_done, args=items, force=True)
      _quietly(self._manager.wait_until_finished)
    except _Unsound as e:
      raise UserError(
        f'Cannot save a checkpoint in {self._dir}: {e} Earlier checkpoints are '
        'intact; free some space and run the same command again.'
      ) from e

  def check_config(self) -> None:
    """Compares the configuration with that of the newest readable checkpoint.

    Raises:
      UserError: if they differ, or there are checkpoints but none can be read.
    """
    reasons = []
    for rounds_done in self._newest_first():
      try:
        note = self._note(rounds_done)
      except _Unsound as e:
        reasons.append(str(e))
        continue
      _check_same(self._workdir, note['config'], self._config)
      return
    if reasons:
      raise self._none_left(reasons[0])

  def restore(self, like: Any) -> tuple[Any, int]:
    """The newest sound checkpoint's state, and the rounds done there.

    Damaged checkpoints newer than that are set aside, with a warning.

    Args:
      like: state with the shapes, dtypes and shardings to restore to.

    Raises:
      UserError: if none is sound, or the newest sound one is of another run, of
        other shapes or of an older version of this package.
    """
    damaged: dict[int, str] = {}
    for rounds_done in self._newest_first():
      try:
        state = self._load(rounds_done, like)
      except _Unsound as e:
        damaged[rounds_done] = str(e)
        continue
      for bad, reason in damaged.items():
        where = self._set_aside(bad)
        logging.warning(
          'Checkpoint %s is damaged (%s) and now %s; the run goes on from round %d.',
          self._dir / str(bad),
          reason,
          where.name,
          rounds_done,
        )
      return state, rounds_done
    raise self._none_left(next(iter(damaged.values())))

  def close(self) -> None:
    """Releases Orbax's threads."""
    self._manager.close()

  def _newest_first(self) -> list[int]:
    return sorted(self._manager.all_steps(), reverse=True)

  def _none_left(self, reason: str) -> UserError:
    return UserError(
      f'No checkpoint in {self._dir} is sound ({reason}); nothing was changed: put '
      'back a sound one, or choose another --workdir.'
    )

  def _note(self, rounds_done: int) -> dict[str, Any]:
    """What was noted beside the state; raises `_Unsound`."""
    if (self._dir / str(rounds_done) / 'default').exists():
      raise UserError(
        f'{self._dir / str(rounds_done)} was saved by an older version of this '
        'package, without digests and its configuration, and cannot be checked; '
        'choose another --workdir, or finish the run with that version.'
      )
    items = ocp.args.Composite(note=ocp.args.JsonRestore())
    note = _quietly(self._manager.restore, rounds_done, args=items)['note']
    digest = note.pop('digest', None) if isinstance(note, dict) else None
    if digest is None or digest != _digest_of_note(note):
      raise _Unsound('its note is not what was saved')
    if note['round'] != rounds_done:
      raise _Unsound(f'it was saved as round {note["round"]}')
    return note

  def _load(self, rounds_done: int, like: Any) -> Any:
    """The state of a checkpoint; raises `_Unsound`."""
    note = self._note(rounds_done)
    _check_same(self._workdir, note['config'], self._config)
    there = {name: kind for name, (kind, _) in note['arrays'].items()}
    if there != {name: _kind(x) for name, x in _named_leaves(like)}:
      raise UserError(
        f'Checkpoint {self._dir / str(rounds_done)} holds arrays of other shapes than '
        'this run: it belongs to a --num_devices that does not divide 8, or to '
        'another version of this package.'
      )
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    state = _quietly(self._manager.restore, rounds_done, args=items)['state']
    for name, kind_and_digest in _digests(state).items():
      if kind_and_digest != note['arrays'][name]:
        raise _Unsound(f'the values of {name} are not what was saved')
    return state

  def _set_aside(self, rounds_done: int) -> pathlib.Path:
    """Renames a checkpoint so that it is none."""
    try:
      place = tempfile.mkdtemp(prefix=f'damaged_{rounds_done}_', dir=self._dir)
      (self._dir / str(rounds_done)).rename(place)
    except OSError as e:
      raise UserError(
        f'Checkpoint {self._dir / str(rounds_done)} is damaged and cannot be set '
        f'aside: {e.strerror}.'
      ) from e
    self._manager.reload()
    return pathlib.Path(place)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _kind(x: Any) -> str:
  return f'{x.dtype}{list(x.shape)}'


def _digests(state: Any) -> dict[str, list[str]]:
  """Path of each array -> [dtype and shape, SHA-256 of its values]."""
  return {name: [_kind(x), _digest(x)] for name, x in _named_leaves(state)}


def _digest(x: jax.Array) -> str:
  """SHA-256 of an array's bytes in C order, on however many devices it lies."""
  total = hashlib.sha256()
  shards = [s for s in x.addressable_shards if s.replica_id == 0]
  if any(s.data.shape[1:] != x.shape[1:] for s in shards):
    parts = [np.asarray(x)]
  else:  # Whole rows: without a copy of all devices' rows in one place.
    shards.sort(key=lambda s: s.index[0].start or 0 if s.index else 0)
    parts = [np.asarray(s.data) for s in shards]
  for part in parts:
    total.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
  return total.hexdigest()


def _digest_of_note(note: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


def _quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
  """What a function of Orbax' returns; its tracebacks do not reach stderr.

  Raises:
    _Unsound: for whatever it raised, in one line.
  """
  not_orbax = lambda record: 'orbax' not in pathlib.Path(record.pathname).parts
  logger = logging.get_absl_logger()
  hook = sys.unraisablehook
  logger.addFilter(not_orbax)
  sys.unraisablehook = lambda _: None
  try:
    try:
      return call(*args, **kwargs)
    except Exception as e:  # Orbax raises many kinds.
      reason = first_line(e)[:200]
    gc.collect()  # Its unfinished coroutines complain when they are collected.
  finally:
    sys.unraisablehook = hook
    logger.removeFilter(not_orbax)
  raise _Unsound(reason)
