"""Reading of files that may be damaged, with clear errors."""

import contextlib
import gzip
import pathlib
import zipfile
import zlib
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import StoredRows, mapped


def first_line(e: BaseException) -> str:
  """The first line of an exception's message."""
  words = e.args[0] if e.args else ''
  # The JSON parser quotes bytes that are not UTF-8.
  text = words.decode(errors='replace') if isinstance(words, bytes) else str(e)
  return (text.splitlines() or [type(e).__name__])[0]


@contextlib.contextmanager
def reading(where: object) -> Iterator[None]:
  """Converts any exception while reading `where` to a `UserError`."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:  # Parsers and codecs raise all kinds.
    raise UserError(
      f'{where} is damaged or not what it should be ({type(e).__name__}: '
      f'{first_line(e)}).'
    ) from e


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A binary file for reading, unpacked if it is gzipped.

  Raises `UserError` if it cannot be opened, or is damaged where it is read.
  """
  try:
    with path.open('rb') as file:
      zipped = file.read(2) == b'\x1f\x8b'
      file.seek(0)
      yield gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[misc]
  except (EOFError, gzip.BadGzipFile, zlib.error) as e:
    raise UserError(f'{path} is damaged: {e}. Download it again.') from e
  except OSError as e:
    raise UserError(f'Cannot read {path}: {e.strerror or e}.') from e


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files of a folder and of its folders, sorted, without hidden ones."""
  with reading(folder):
    return sorted(
      p
      for p in folder.rglob('*')
      if p.is_file() and not any(n[0] == '.' for n in p.relative_to(folder).parts)
    )


def warn_of_others(
  folder: pathlib.Path, read: Collection[pathlib.Path], others: str
) -> None:
  """Warns of files of a folder that are not `read`, which `others` describes."""
  held = set(read)
  if left := [p for p in files_of(folder) if p not in held]:
    warn_once(f'{folder}: {others} are left out: {len(left):,}, such as {left[0]}.')


def read_npz(path: pathlib.Path, stored: Collection[str] = ()) -> dict[str, Any]:
  """The arrays of an .npz file.

  Arrays named in `stored` stay in the file, as `StoredRows`, unless they are
  compressed; such a file may be replaced, but not modified. Raises `UserError` if it is
  damaged, or holds pickled objects, which are never unpickled.
  """
  # Opened once, as it may be replaced between two openings.
  with reading(path), path.open('rb') as file, zipfile.ZipFile(file) as archive:
    members = archive.infolist()
    _check_directory(file, len(members))
    plain = {i.filename for i in members if i.compress_type == zipfile.ZIP_STORED}
    stay = {name for name in stored if f'{name}.npy' in plain}
    file.seek(0)
    try:
      with np.load(file, allow_pickle=False) as held:
        arrays = {
          name: StoredRows(mapped(file, archive, name)) if name in stay else held[name]
          for name in held.files
        }
      for name, x in arrays.items():
        if isinstance(x, bytes):  # NumPy's value for a member without a header.
          raise ValueError(f'{name} is not an array')
      return arrays
    except ValueError as e:
      if 'pickle' not in str(e).lower():
        raise
      raise UserError(
        f'{path} holds pickled objects, which are never unpickled; save plain arrays.'
      ) from e


def _check_directory(file: BinaryIO, count: int) -> None:
  """Raises `ValueError` if a damaged directory of an archive hides members."""
  file.seek(0, 2)
  file.seek(max(0, file.tell() - 22))  # The end record of an archive without comment.
  end = file.read(22)
  announced = int.from_bytes(end[10:12], 'little')
  if end[:4] == b'PK\5\6' and announced not in (count, 0xFFFF):
    raise ValueError(f'its directory lists {count} of {announced} arrays')
