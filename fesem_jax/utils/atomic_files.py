"""Files that are written as a whole or not at all, never through a link."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A new file, open for writing, that takes the place of `path` once it is whole.

  It lies beside `path` under a random name (`.NAME.RANDOM.partial`) that did not
  exist before, so that a link planted there is never followed; where `path` is a
  link itself, the link is replaced and not what it points to. The file's own
  path is its attribute `name`.

  Args:
    path: to write or replace; its folder must exist.

  Raises:
    UserError: if it cannot be written, e.g. on a full disk; `path` is then as before.
  """
  # Names may have up to 255 bytes, a character up to 4.
  partial = path.with_name(f'.{path.name[:40]}.{secrets.token_hex(8)}.partial')
  made = False
  try:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o666)
    made = True
    with open(partial, 'wb', opener=lambda *_: descriptor) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())  # Or a power cut could leave the new name empty.
    os.replace(partial, path)
    made = False
  except OSError as e:
    raise UserError(
      f'Cannot write {path}: {e.strerror or e}. What was there before is unchanged.'
    ) from e
  finally:
    if made:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a whole file of UTF-8 or nothing; readers never see half of one."""
  with replacing(path) as file:
    file.write(text.encode())


def write_arrays_atomically(
  path: pathlib.Path, arrays: dict[str, np.ndarray], compress: bool = True
) -> None:
  """Writes an .npz as a whole or not at all; raises `UserError`."""
  save = np.savez_compressed if compress else np.savez
  with replacing(path) as file:
    save(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]


def is_writable(folder: pathlib.Path) -> bool:
  """Whether a folder can be written, or made in the nearest that exists above it."""
  existing = next(f for f in (folder, *folder.absolute().parents) if f.exists())
  return os.access(existing, os.W_OK | os.X_OK)
