"""Taking a workdir for a run: its lock, and the run that it may hold already."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from fesem_jax.run.checkpoint import Checkpoints, saved_rounds
from fesem_jax.run.configuration import check_same
from fesem_jax.run.results.files import read_object
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import WorkdirError


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other runs out of a folder, which is made if absent, until the block ends.

  The system releases the lock when the process dies.
  """
  import fcntl  # Not on Windows, where the package is imported all the same.

  folder.mkdir(parents=True, exist_ok=True)
  flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDWR | os.O_CREAT
  with open(os.open(folder / '.lock', flags, 0o666), 'rb+', buffering=0) as file:
    with contextlib.suppress(OSError):  # No locks there, or a full disk.
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as e:
        owner = file.read(20).decode(errors='replace') or 'unknown'
        message = f'workdir: {folder} is in use by another run, process {owner}'
        raise WorkdirError(message) from e
      file.truncate(0)
      file.write(str(os.getpid()).encode())
    yield


@contextlib.contextmanager
def claim_workdir(
  workdir: pathlib.Path, config: dict[str, Any], resume: bool
) -> Iterator[Checkpoints]:
  """Locks a workdir until the block ends; yields its checkpoints.

  Raises `UserError` if the run of `config` may not use it.
  """
  with contextlib.ExitStack() as stack:

    def claim() -> None:
      stack.enter_context(locked(workdir))
      _claim(workdir, config, resume)

    processes.from_first(claim)
    if processes.any_of(not (workdir / 'config.json').exists()):
      raise processes.error_in_all(
        f'workdir: {workdir} must be one folder on a disk that all processes share'
      )
    checkpoints = Checkpoints(workdir)
    stack.enter_context(contextlib.closing(checkpoints))
    yield checkpoints


def _claim(workdir: pathlib.Path, config: dict[str, Any], resume: bool) -> None:
  """Checks that a run may use a workdir, and leaves its configuration there."""
  old, saved = read_object(workdir / 'config.json'), saved_rounds(workdir)
  names = 'summary.json', 'clients.csv', 'clients.npz', 'models.npz', 'metrics.jsonl'
  files = [name for name in names if (workdir / name).exists()]
  if not resume and (old is not None or saved or files):
    raise WorkdirError(f'workdir: {workdir} holds a run; set resume, or choose another')
  # A run that was killed before its first checkpoint has only metrics.
  if (saved or files) and (old is None or not (saved or files == ['metrics.jsonl'])):
    raise WorkdirError(f'workdir: {workdir} lacks config.json or checkpoints')
  if old is None:
    text = json.dumps(config, indent=1, sort_keys=True) + '\n'
    write_atomically(workdir / 'config.json', text)
  else:
    check_same(workdir, old, config)
  remove_left_overs(workdir)


def remove_left_overs(workdir: pathlib.Path) -> None:
  """Deletes what a run, or a comparison, that was killed had not finished writing."""
  with contextlib.suppress(OSError):
    for folder in (workdir, workdir / 'plots'):
      for file in folder.glob('.*.partial'):
        file.unlink()
  for folder in (workdir / 'checkpoints').glob('*.orbax-checkpoint-tmp*'):
    shutil.rmtree(folder, ignore_errors=True)
