"""Reading of files that may be damaged, with clear errors."""

import contextlib
import gzip
import math
import pathlib
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError

_BLOCK_BYTES = 2**25
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


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
  except FileNotFoundError as e:
    raise UserError(f'{where}: does not exist') from e
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


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an .npz file.

  Raises `UserError` if it is damaged, or holds pickled objects, which are never
  unpickled.
  """
  with reading(path), np.load(path, allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


def mapped(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """An array of an .npz file, mapped into memory.

  `file`, opened for reading, may be replaced afterwards, but not modified; `archive` is
  the same file, opened as a zip archive, which has the array `name` without
  compression. Raises `ValueError` if the array holds Python objects, or if its length
  differs from its header, and `zipfile.BadZipFile` if its checksum is wrong.
  """
  member = archive.getinfo(f'{name}.npy')
  with archive.open(member) as held:
    version = np.lib.format.read_magic(held)
    if version not in _HEADERS:
      raise ValueError(f'{name} is of version {version} of the format, not of 1 or 2')
    shape, by_column, dtype = _HEADERS[version](held)
    header = held.tell()
    while held.read(_BLOCK_BYTES):  # Compares the checksum at the end.
      pass
  if dtype.hasobject:
    raise ValueError('Objects are pickled.')
  # Otherwise rows would contain the bytes that follow in the file.
  if header + math.prod(shape) * dtype.itemsize != member.file_size:
    raise ValueError(f'{name} is not as long as its header says')
  file.seek(member.header_offset + 26)  # Lengths of the name and the extra field.
  lengths = sum(int.from_bytes(file.read(2), 'little') for _ in range(2))
  start = member.header_offset + 30 + lengths + header
  return np.memmap(file, dtype, 'r', start, shape, 'F' if by_column else 'C')
