"""Rows of an array that stay in a file until they are read.

A process that trains some of the clients holds only their examples.
"""

import math
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

# Size of a block when all rows are read.
_BLOCK_BYTES = 2**25

_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class StoredRows:
  """[T, ...] rows, chosen from an array in a file, read when they are indexed.

  Attributes:
    shape: of the array of all rows.
    dtype: of the rows that are read.
  """

  def __init__(
    self,
    held: np.ndarray,
    rows: np.ndarray | None = None,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
  ):
    """Chooses rows.

    Args:
      held: [N, ...] array that is mapped into memory.
      rows: [T] numbers of its rows, in order; None for all rows.
      change: function of some rows [n, ...], applied when they are read.
    """
    self._held, self._rows, self._change = held, rows, change
    count, none = len(held) if rows is None else len(rows), self._changed(held[:0])
    self.shape, self.dtype = (count, *none.shape[1:]), none.dtype

  @property
  def ndim(self) -> int:
    """Number of axes."""
    return len(self.shape)

  @property
  def nbytes(self) -> int:
    """Bytes of all rows in memory."""
    return math.prod(self.shape) * self.dtype.itemsize

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index: Any) -> np.ndarray:
    """Reads the rows of a slice or of an array of row numbers."""
    if self._rows is not None:
      return self._changed(np.asarray(self._held[self._rows[index]]))
    return self._changed(np.array(self._held[index]))

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Reads all rows."""
    return np.asarray(self[:], dtype)

  def take(self, rows: np.ndarray) -> 'StoredRows':
    """Some of the rows, without reading them."""
    chosen = rows if self._rows is None else self._rows[rows]
    return StoredRows(self._held, chosen, self._change)

  def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> 'StoredRows':
    """The rows with one more change, applied after the previous ones."""
    return StoredRows(self._held, self._rows, lambda x: change(self._changed(x)))

  def _changed(self, x: np.ndarray) -> np.ndarray:
    return x if self._change is None else self._change(x)


Rows = np.ndarray | StoredRows


def take(x: Rows, rows: np.ndarray) -> Rows:
  """Some rows of an array; rows of a file are not read."""
  if isinstance(x, StoredRows):
    return x.take(rows)
  chosen = _aligned((len(rows), *x.shape[1:]), x.dtype)
  return np.take(x, rows, axis=0, out=chosen, mode='clip')


def read(x: Rows) -> np.ndarray:
  """The array in memory, read if it is in a file."""
  if not isinstance(x, StoredRows):
    return x
  whole = _aligned(x.shape, x.dtype)
  for first, rows in blocks(x):
    whole[first : first + len(rows)] = rows
  return whole


def changed(x: Rows, change: Callable[[np.ndarray], np.ndarray]) -> Rows:
  """The rows after a change of each, of a file applied when they are read."""
  return x.changed(change) if isinstance(x, StoredRows) else change(x)


def blocks(x: Rows) -> Iterator[tuple[int, np.ndarray]]:
  """All rows in blocks of limited size: number of the first row, and the rows."""
  on_each = max(1, _BLOCK_BYTES // max(1, x.nbytes // max(1, len(x))))
  for first in range(0, len(x), on_each):
    yield first, x[first : first + on_each]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """An array aligned so that CPU devices share its memory instead of copying it."""
  size, line = math.prod(shape) * dtype.itemsize, 64
  raw = np.empty(size + line, np.uint8)
  start = -raw.ctypes.data % line
  return raw[start : start + size].view(dtype).reshape(shape)


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
