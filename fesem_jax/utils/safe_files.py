"""Bounded reading of files that may be damaged or malicious, with clear errors."""

import contextlib
import gzip
import pathlib
import zipfile
import zlib
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import StoredRows, mapped

# A compressed file that expands beyond both is refused as a bomb.
MAX_RATIO = 200
MAX_EXPANDED_BYTES = 2**30
# An image of a few kilobytes may have more pixels; cameras produce fewer.
MAX_PIXELS = 2**26

_PIECE_BYTES = 2**24


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


class BoundedReader:
  """A binary file, gzipped or not, that never expands beyond the bounds above.

  Raises `UserError` on opening, if it cannot be read, and on reading, if it is damaged
  or expands too much.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    try:
      self._file: BinaryIO = path.open('rb')
      magic = self._file.read(2)
      self._file.seek(0)
      self._limit = max(MAX_EXPANDED_BYTES, MAX_RATIO * path.stat().st_size)
    except OSError as e:
      raise UserError(f'Cannot read {path}: {e.strerror}.') from e
    self._zipped = magic == b'\x1f\x8b'
    if self._zipped:
      self._file = gzip.GzipFile(fileobj=self._file)  # type: ignore[assignment]
    self._count = 0

  def read(self, size: int = -1) -> bytes:
    """The next bytes, at most `size` of them."""
    if size < 0:  # In pieces: Python allocates as many bytes as it is asked for.
      return b''.join(iter(lambda: self.read(_PIECE_BYTES), b''))
    try:
      data = self._file.read(min(size, self._limit - self._count + 1))
    except (OSError, EOFError, zlib.error) as e:
      raise UserError(f'{self._path} is damaged: {e}. Download it again.') from e
    self._count += len(data)
    if self._zipped and self._count > self._limit:
      raise UserError(
        f'{self._path} expands to more than {self._limit / 2**20:.0f} MiB, over '
        f'{MAX_RATIO} times its size; it is refused.'
      )
    return data

  def __enter__(self) -> 'BoundedReader':
    return self

  def __exit__(self, *args: object) -> None:
    self._file.close()


def check_expanded(path: pathlib.Path, expanded: int) -> None:
  """Raises `UserError` if a file that expands to `expanded` bytes is a bomb."""
  if expanded > max(MAX_EXPANDED_BYTES, MAX_RATIO * path.stat().st_size):
    raise UserError(
      f'{path} expands to {expanded / 2**20:.0f} MiB, over {MAX_RATIO} times its '
      'size; it is refused.'
    )


def check_pixels(size: tuple[int, int], where: object) -> None:
  """Raises `UserError` if an image has too many pixels to be decoded."""
  width, height = size
  if width * height > MAX_PIXELS:
    raise UserError(
      f'{where} has {width} x {height} pixels, over {MAX_PIXELS:,}; it is refused.'
    )


def read_npz(path: pathlib.Path, stored: Collection[str] = ()) -> dict[str, Any]:
  """The arrays of an .npz file.

  Arrays named in `stored` stay in the file, as `StoredRows`, unless they are
  compressed; such a file may be replaced, but not modified. Raises `UserError` if it is
  damaged, expands beyond the bounds, or holds pickled objects, which are never
  unpickled.
  """
  # Opened once, as it may be replaced between two openings.
  with reading(path), path.open('rb') as file, zipfile.ZipFile(file) as archive:
    members = archive.infolist()
    _check_directory(file, len(members))
    plain = {i.filename for i in members if i.compress_type == zipfile.ZIP_STORED}
    check_expanded(path, sum(info.file_size for info in members))
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


def inside(folder: pathlib.Path, name: str, source: object) -> pathlib.Path:
  """The path of the file `name` below a folder.

  Raises `UserError` if the name, which comes from `source` and may be malicious, leads
  out of the folder.
  """
  parts = pathlib.PurePosixPath(name.replace('\\', '/'))
  bad = {':', '\0'} & set(name)
  if not name or parts.is_absolute() or '..' in parts.parts or bad:
    raise UserError(f'{source} names {name!r}, which is not a file below {folder}.')
  return folder / parts
