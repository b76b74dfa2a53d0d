"""Rows of an array that stay in their file until they are read.

A process that trains some of the clients holds the examples of these only.
"""

import math
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

# Of what is read at once where all is looked over.
_BLOCK_BYTES = 2**25

_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class StoredRows:
  """[T, ...] rows, chosen from an array in a file, read when they are indexed.

  Attributes:
    shape: as if they were an array.
    dtype: of what is read.
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
      rows: [T] which of its rows, in order; None is all of them.
      change: what is done to values as they are read, one by one.
    """
    self._held, self._rows, self._change = held, rows, change
    count = len(held) if rows is None else len(rows)
    self.shape = (count, *held.shape[1:])
    self.dtype = self._changed(held[:0]).dtype

  @property
  def ndim(self) -> int:
    """Number of axes."""
    return len(self.shape)

  @property
  def nbytes(self) -> int:
    """Bytes of all rows, were they read."""
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
    """Some of the rows, which stay where they are."""
    chosen = rows if self._rows is None else self._rows[rows]
    return StoredRows(self._held, chosen, self._change)

  def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> 'StoredRows':
    """The rows with another change to their values, after those before."""
    return StoredRows(self._held, self._rows, lambda x: change(self._changed(x)))

  def _changed(self, x: np.ndarray) -> np.ndarray:
    return x if self._change is None else self._change(x)


Rows = np.ndarray | StoredRows


def take(x: Rows, rows: np.ndarray) -> Rows:
  """Some rows of an array; those of a file stay there."""
  if isinstance(x, StoredRows):
    return x.take(rows)
  chosen = _aligned((len(rows), *x.shape[1:]), x.dtype)
  return np.take(x, rows, axis=0, out=chosen, mode='clip')


def read(x: Rows) -> np.ndarray:
  """The array itself, read if it is in a file."""
  if not isinstance(x, StoredRows):
    return x
  whole = _aligned(x.shape, x.dtype)
  for first, rows in blocks(x):
    whole[first : first + len(rows)] = rows
  return whole


def changed(x: Rows, change: Callable[[np.ndarray], np.ndarray]) -> Rows:
  """Values that are changed one by one; those of a file when they are read."""
  return x.changed(change) if isinstance(x, StoredRows) else change(x)


def blocks(x: Rows) -> Iterator[tuple[int, np.ndarray]]:
  """All rows, so few at a time that they need little memory.

  Yields:
    Number of the first row, and the rows.
  """
  on_each = max(1, _BLOCK_BYTES // max(1, x.nbytes // max(1, len(x))))
  for first in range(0, len(x), on_each):
    yield first, x[first : first + on_each]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """An array whose memory CPU devices share; others they copy, each for itself."""
  size, line = math.prod(shape) * dtype.itemsize, 64
  raw = np.empty(size + line, np.uint8)
  start = -raw.ctypes.data % line
  return raw[start : start + size].view(dtype).reshape(shape)


def mapped(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """An array of an .npz file that is read where it is used.

  Args:
    file: opened for reading; the file must not be written to afterwards, only replaced.
    archive: the same as a zip file.
    name: of the array, which is stored without compression.

  Raises:
    ValueError: if it holds Python objects, or bytes other than its header says.
    zipfile.BadZipFile: if its checksum is wrong.
  """
  member = archive.getinfo(f'{name}.npy')
  with archive.open(member) as held:
    version = np.lib.format.read_magic(held)
    if version not in _HEADERS:
      raise ValueError(f'{name} is of version {version} of the format, not of 1 or 2')
    shape, by_column, dtype = _HEADERS[version](held)
    header = held.tell()
    while held.read(_BLOCK_BYTES):  # At its end it compares checksums.
      pass
  if dtype.hasobject:
    raise ValueError('Objects are pickled.')
  # Else the rows would reach into what follows in the file.
  if header + math.prod(shape) * dtype.itemsize != member.file_size:
    raise ValueError(f'{name} is not as long as its header says')
  file.seek(member.header_offset + 26)  # Lengths of the name and the extra field.
  lengths = sum(int.from_bytes(file.read(2), 'little') for _ in range(2))
  start = member.header_offset + 30 + lengths + header
  return np.memmap(file, dtype, 'r', start, shape, 'F' if by_column else 'C')
