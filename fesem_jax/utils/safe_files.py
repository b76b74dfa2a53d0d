"""Reading of files that may be damaged, with clear errors."""

import contextlib
import gzip
import pathlib
import zipfile
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError
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
  """A binary file for reading, unpacked if it is gzipped; `UserError` as `reading`."""
  with reading(path), path.open('rb') as file:
    zipped = file.read(2) == b'\x1f\x8b'
    file.seek(0)
    yield gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[misc]


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files of a folder and of its folders, sorted, without hidden ones."""
  with reading(folder):
    return sorted(
      p
      for p in folder.rglob('*')
      if p.is_file() and not any(n[0] == '.' for n in p.relative_to(folder).parts)
    )


def read_npz(path: pathlib.Path, stored: Collection[str] = ()) -> dict[str, Any]:
  """The arrays of an .npz file.

  Arrays named in `stored` stay in the file, as `StoredRows`, unless they are
  compressed; such a file may be replaced, but not modified. Raises `UserError` if it is
  damaged, or holds pickled objects, which are never unpickled.
  """
  # Opened once, as it may be replaced between two openings.
  with reading(path), path.open('rb') as file, zipfile.ZipFile(file) as archive:
    members = archive.infolist()
    plain = {i.filename for i in members if i.compress_type == zipfile.ZIP_STORED}
    stay = {name for name in stored if f'{name}.npy' in plain}
    file.seek(0)
    with np.load(file, allow_pickle=False) as archived:
      return {
        name: StoredRows(mapped(file, archive, name))
        if name in stay
        else archived[name]
        for name in archived.files
      }
