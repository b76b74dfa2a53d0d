"""The user's own cache folder."""

import os
import pathlib
import stat

from fesem_jax.utils.errors import UserError


def folder() -> pathlib.Path:
  """The cache folder of this package, which may not exist."""
  base = os.environ.get('XDG_CACHE_HOME', '')
  # The XDG specification says to ignore a relative path.
  root = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / '.cache'
  return root / 'fesem_jax'


def make_private(folder: pathlib.Path) -> None:
  """Creates a folder writable by this user only; refuses one that others can write."""
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  status = folder.lstat()
  mine = not hasattr(os, 'getuid') or status.st_uid == os.getuid()
  if not stat.S_ISDIR(status.st_mode) or not mine or status.st_mode & 0o022:
    raise UserError(f'{folder} is not a folder that only this user may write to.')
