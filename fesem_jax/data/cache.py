"""Arrays that take long to read, kept in the user's own cache folder."""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from fesem_jax.utils import file_locks, user_cache
from fesem_jax.utils.atomic_files import write_arrays_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import read_npz, reading

# Smaller data sets are read again instead of being cached.
MIN_CACHED_BYTES = 2**25


def total_size(paths: Iterable[pathlib.Path]) -> int:
  """Bytes of some files; raises `UserError` if one is absent."""
  try:
    return sum(p.stat().st_size for p in paths)
  except OSError as e:
    raise UserError(f'Cannot read {e.filename}: {e.strerror}.') from e


def digest(files: Iterable[pathlib.Path], salt: str = '') -> str:
  """SHA-256 of contents and names, with that of their folder, in any order."""
  total = hashlib.sha256(salt.encode())
  for path in sorted(files):
    with reading(path), path.open('rb') as f:
      name = f'{path.parent.name}/{path.name}'  # train/a.json is not test/a.json.
      total.update(name.encode() + hashlib.file_digest(f, 'sha256').digest())
  return total.hexdigest()


def state(stat: os.stat_result) -> tuple[int, ...]:
  """A file's size and times, where there are too many files to read for a digest.

  That of the change of the file itself is not kept by copies that keep its date, such
  as those of tar and rsync.
  """
  return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def cache_path(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Where the arrays of a data set are kept: in the user's own cache folder.

  Not beside the data in `folder`, which may come from another person, with links or a
  forged cache in it, or lie on a read-only disk. Each user of shared data parses them
  once. Two data sets of one folder have separate caches, by `name`.
  """
  which = hashlib.sha256(f'{name}\0{folder.resolve()}'.encode(errors='surrogateescape'))
  return user_cache.folder() / 'data' / f'{which.hexdigest()[:32]}.npz'


def cached(
  folder: pathlib.Path,
  name: str,
  key: Callable[[], str],
  size: int,
  build: Callable[[], dict[str, Any]],
  stored: Collection[str] = (),
) -> dict[str, Any]:
  """Gives arrays that take long to build, from a file if it is up to date.

  Args:
    folder: see `cache_path`.
    name: see `cache_path`.
    key: of what the arrays are built from, e.g. `digest` of the files; the cache is
      replaced as a whole when it changes.
    size: bytes that are read to build them; small ones are not cached.
    build: makes the arrays.
    stored: names of those that stay in the cache until their rows are asked for.

  Returns:
    The arrays by name; `StoredRows` where they stay in the cache.
  """
  if size < MIN_CACHED_BYTES:
    return build()
  try:
    file_locks.module()
    with reading('The cache folder'):
      path = cache_path(folder, name)
      user_cache.make_private(path.parent)
  except UserError as e:
    logging.warning('%s The data is read from scratch at every start.', e)
    return build()
  wanted = key()

  def stored_arrays() -> dict[str, Any] | None:
    with contextlib.suppress(UserError):  # No cache, or one that is damaged.
      held = read_npz(path, stored)
      if str(held.pop('key', None)) == wanted:
        return held
    return None

  if (held := stored_arrays()) is not None:
    return held
  with _alone(path.parent):  # Others that start with this one wait for what it builds.
    if (held := stored_arrays()) is not None:
      return held
    arrays = build()
    try:
      write_arrays_atomically(path, arrays | {'key': np.array(wanted)}, compress=False)
    except UserError as e:
      logging.warning('%s The next start reads the data from scratch.', e)
      return arrays
  return stored_arrays() or arrays


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
  """Lets one process of this user build at a time, where the folder can be locked."""
  fcntl = file_locks.module()
  held = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # Some network file systems cannot.
      fcntl.flock(held, fcntl.LOCK_EX)
    yield
  finally:
    os.close(held)
