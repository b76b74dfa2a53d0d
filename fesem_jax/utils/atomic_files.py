"""Atomic writes of files, never through a link."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from fesem_jax.utils.errors import UserError


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a new file for writing that replaces `path` when it is complete.

  The file is `.NAME.RANDOM.partial` in the folder of `path`, which must exist. A link
  at `path` is replaced, not followed. Raises `UserError` if it cannot be written, e.g.
  on a full disk; `path` does not change.
  """
  # Names have at most 255 bytes, and characters at most 4.
  partial = path.with_name(f'.{path.name[:40]}.{secrets.token_hex(8)}.partial')
  try:
    with open(partial, 'xb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())  # Otherwise a power cut could leave an empty file.
    os.replace(partial, path)
  except OSError as e:
    raise UserError(f'{path}: cannot be written ({e.strerror or e})') from e
  finally:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a UTF-8 file atomically; readers never see a part of it."""
  with replacing(path) as file:
    file.write(text.encode())
