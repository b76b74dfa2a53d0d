"""Whose a workdir is, and the checkpoints in it: whole states, digested, by Orbax."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from fesem_jax.atomic import write_atomically
from fesem_jax.bounded import first_line
from fesem_jax.errors import UserError
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


_KEPT = 2  # Checkpoints: the newest, and one in case that it is damaged.

# What a flag is in a version of this package that does not have it.
_NONE = 'no such flag'


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[bool]:
  """Keeps other runs out of a folder until the block ends; gives whether it can.

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
    yield False
    return
  alone = True
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
    alone = False
    logging.warning(
      '%s cannot be locked (%s): make sure that no second run uses it.',
      folder,
      e.strerror,
    )
  else:
    with contextlib.suppress(OSError):  # A read-only or a full disk.
      os.ftruncate(descriptor, 0)
      os.pwrite(descriptor, str(os.getpid()).encode(), 0)
  try:
    yield alone
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
  with locked(workdir) as alone:
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
      if alone:
        _remove_left_overs(workdir)
      if old is None:
        checkpoints.check_config()
        text = json.dumps(config, indent=1, sort_keys=True) + '\n'
        write_atomically(workdir / 'config.json', text)
      yield checkpoints


def _remove_left_overs(workdir: pathlib.Path) -> None:
  """Deletes what a run that was killed had not finished writing."""
  with contextlib.suppress(OSError):
    for file in workdir.glob('.*.partial'):
      file.unlink()
  for folder in (workdir / 'checkpoints').glob('.*.partial'):
    shutil.rmtree(folder, ignore_errors=True)


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

  def differs(name: str) -> str:
    there, now = (c.get(name, _NONE) for c in (old, config))
    if name == 'data_digest':
      return 'the data (--data_dir holds other examples, labels or clients now)'
    if str(there) == str(now):  # "20" and 20.
      there, now = repr(there), repr(now)
    return f'--{name} (there: {there}, now: {now})'

  differing = [
    differs(name)
    for name in sorted(set(old) | set(config))
    if name not in FREE_FLAGS and old.get(name) != config.get(name)
  ]
  if differing:
    raise UserError(
      f'--workdir={workdir} holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )


class _Unsound(Exception):  # noqa: N818 - becomes a warning or a UserError.
  """A checkpoint that cannot be what was saved, or cannot be saved."""


class Checkpoints:
  """The newest checkpoints of a workdir.

  Each is a folder `workdir/checkpoints/ROUND` that holds the state as Orbax writes
  it, and `note.json`: the round, the configuration, the kinds of the arrays, and
  the SHA-256 of every file and of the note itself.

  Args:
    workdir: existing folder.
    config: of the run, saved with each checkpoint and compared with it.

  Raises:
    UserError: if the folder of checkpoints cannot be made.
  """

  def __init__(self, workdir: pathlib.Path, config: dict[str, Any]):
    self._workdir = workdir
    self._config = config
    self._dir = (workdir / 'checkpoints').absolute()
    try:
      self._dir.mkdir(exist_ok=True)
    except OSError as e:
      raise UserError(f'Cannot write {self._dir}: {e.strerror}.') from e
    self._orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return max(saved_rounds(self._workdir), default=None)

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state; a checkpoint exists whole or not at all.

    Raises:
      UserError: if it cannot be written, e.g. on a full disk; older
        checkpoints are untouched.
    """
    if self.latest_round() == rounds_done:
      return
    partial = self._dir / f'.{rounds_done}.{secrets.token_hex(8)}.partial'
    try:
      partial.mkdir()
      _quietly(self._orbax.save, partial / 'state', args=ocp.args.StandardSave(state))
      note = {
        'round': rounds_done,
        'config': self._config,
        'arrays': _kinds(state),
        'files': _digests(partial),
      }
      text = json.dumps(note | {'digest': _digest_of_note(note)}, indent=1)
      write_atomically(partial / 'note.json', text + '\n')
      partial.rename(self._dir / str(rounds_done))
    except (OSError, UserError, _Unsound) as e:
      shutil.rmtree(partial, ignore_errors=True)
      reason = e.strerror if isinstance(e, OSError) else str(e).rstrip('.')
      raise UserError(
        f'Cannot save a checkpoint in {self._dir}: {reason}. Earlier checkpoints are '
        'intact; free some space and run the same command again.'
      ) from e
    for old in saved_rounds(self._workdir)[:-_KEPT]:
      shutil.rmtree(self._dir / str(old), ignore_errors=True)

  def check_config(self) -> None:
    """Compares the configuration with that of the newest readable checkpoint.

    Raises:
      UserError: if they differ, or there are checkpoints but none can be read.
    """
    reasons = []
    for rounds_done in reversed(saved_rounds(self._workdir)):
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
    for rounds_done in reversed(saved_rounds(self._workdir)):
      try:
        state = self._load(rounds_done, like)
      except _Unsound as e:
        damaged[rounds_done] = str(e)
        continue
      for bad, reason in damaged.items():
        logging.warning(
          'Checkpoint %s is damaged (%s) and now %s; the run goes on from round %d.',
          self._dir / str(bad),
          reason,
          self._set_aside(bad),
          rounds_done,
        )
      return state, rounds_done
    raise self._none_left(next(iter(damaged.values()), 'there is none'))

  def close(self) -> None:
    """Releases Orbax's threads."""
    self._orbax.close()

  def _none_left(self, reason: str) -> UserError:
    return UserError(
      f'No checkpoint in {self._dir} is sound ({reason}); nothing was changed: put '
      'back a sound one, or choose another --workdir.'
    )

  def _note(self, rounds_done: int) -> dict[str, Any]:
    """What was noted beside a state; raises `_Unsound`."""
    folder = self._dir / str(rounds_done)
    if (folder / 'default').exists():
      raise UserError(
        f'{folder} was saved by an older version of this package, without digests and '
        'its configuration, and cannot be checked; choose another --workdir, or '
        'finish the run with that version.'
      )
    try:
      note = json.loads((folder / 'note.json').read_bytes().decode())
    except FileNotFoundError as e:
      raise _Unsound('note.json is missing') from e
    except (OSError, ValueError, RecursionError) as e:
      raise _Unsound(f'note.json: {first_line(e)}') from e
    digest = note.pop('digest', None) if isinstance(note, dict) else None
    if digest is None or digest != _digest_of_note(note):
      raise _Unsound('note.json is not what was saved')
    if note['round'] != rounds_done:
      raise _Unsound(f'it was saved as round {note["round"]}')
    return note

  def _load(self, rounds_done: int, like: Any) -> Any:
    """The state of a checkpoint; raises `_Unsound`."""
    folder, note = self._dir / str(rounds_done), self._note(rounds_done)
    _check_same(self._workdir, note['config'], self._config)
    try:
      found = _digests(folder)
    except OSError as e:
      raise _Unsound(f'{e.filename}: {e.strerror}') from e
    for name, digest in note['files'].items():
      if found.get(name) != digest:
        what = 'not what was saved' if name in found else 'missing'
        raise _Unsound(f'{name} is {what}')
    if note['arrays'] != _kinds(like):
      raise UserError(
        f'Checkpoint {folder} holds arrays of other shapes than this run: it belongs '
        'to a --num_devices that does not divide 8, or to another version of this '
        'package.'
      )
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    items = ocp.args.StandardRestore(abstract)
    try:
      return _quietly(self._orbax.restore, folder / 'state', args=items)
    except _Unsound as e:  # Not for damage, but for lack of memory, say.
      raise UserError(f'Checkpoint {folder} is sound but cannot be read: {e}.') from e

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


def _kinds(state: Any) -> dict[str, str]:
  """Path of each array -> its dtype and shape."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {jax.tree_util.keystr(path): f'{x.dtype}{list(x.shape)}' for path, x in leaves}


def _digests(folder: pathlib.Path) -> dict[str, str]:
  """Path below `folder` of each file of the state -> SHA-256 of its content."""
  digests = {}
  for path in sorted((folder / 'state').rglob('*')):
    if path.is_file():
      with path.open('rb') as file:
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
      digests[path.relative_to(folder).as_posix()] = digest
  return digests


def _digest_of_note(note: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


def _quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
  """What a function of Orbax' returns; its tracebacks do not reach stderr.

  Raises:
    _Unsound: for whatever it raised, in one line.
  """
  not_orbax = lambda record: 'orbax' not in pathlib.Path(record.pathname).parts
  logger = logging.get_absl_logger()
  logger.addFilter(not_orbax)
  try:
    return call(*args, **kwargs)
  except Exception as e:  # Orbax raises many kinds.
    reason = first_line(e)
  finally:
    logger.removeFilter(not_orbax)
  reason = reason.split(' [')[0]  # TensorStore adds whole specifications.
  if len(reason) > 200:  # The cause is at the end, e.g. "No space left on device".
    reason = f'{reason[:60]} ... {reason[-120:]}'
  raise _Unsound(reason)
