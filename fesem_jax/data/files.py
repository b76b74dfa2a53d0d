"""What loaders share: bounded reading, safe paths, and a cache of arrays."""

import contextlib
import gzip
import hashlib
import os
import pathlib
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import numpy as np
from absl import logging

from fesem_jax.atomic import write_arrays_atomically
from fesem_jax.errors import UserError

# A compressed file that grows beyond both is refused as a bomb.
MAX_RATIO = 200
MAX_EXPANDED_BYTES = 2**30

# Smaller data sets are read again instead of being cached.
MIN_CACHED_BYTES = 2**25

# Bounds on JSON, far beyond real data: the parser needs quadratic time for deep
# nesting, and converting numbers of thousands of digits has ended in a crash.
MAX_TOKEN = 2000  # Bytes of a number or string.
MAX_DEPTH = 32  # Brackets around a value.

_ESCAPE = re.compile(rb'\\.', re.DOTALL)
_BETWEEN_TOKENS = re.compile(rb'[\s,:\[\]{}]+')
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}'))


def first_line(e: Exception) -> str:
  """What an exception says, in one line."""
  words = e.args[0] if e.args else ''
  # The JSON parser quotes bytes that are not UTF-8.
  text = words.decode(errors='replace') if isinstance(words, bytes) else str(e)
  return (text.splitlines() or [type(e).__name__])[0]


@contextlib.contextmanager
def reading(where: object) -> Iterator[None]:
  """Turns whatever a damaged or odd file provokes into one sentence.

  Args:
    where: file, and client if there is one.

  Raises:
    UserError: for any exception inside; those that are `UserError` pass.
  """
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

  Raises:
    UserError: on opening if it cannot be read; on reading if it is damaged or
      expands too far.
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
    most = self._limit - self._count + 1
    try:
      data = self._file.read(most if size < 0 else min(size, most))
    except (OSError, EOFError, zlib.error) as e:
      raise UserError(f'{self._path} is damaged: {e}. Fetch it again.') from e
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


class JsonReader(BoundedReader):
  """JSON text whose tokens and depth are bounded before a parser sees them.

  A token that lies in two reads may be twice as long.

  Raises:
    UserError: as `BoundedReader`; on reading beyond `MAX_TOKEN` or `MAX_DEPTH`.
  """

  def __init__(self, path: pathlib.Path):
    super().__init__(path)
    self._depth = 0
    self._quoted = False  # Whether the last read ended inside a string,
    self._escaped = False  # and there after a backslash.

  def read(self, size: int = -1) -> bytes:
    """The next bytes, at most `size` of them."""
    data = super().read(size)
    text = data[1:] if self._escaped and data else data
    if data:
      self._escaped = False
    if b'\\' in text:  # No escaped quote may look like the end of a string.
      text = _ESCAPE.sub(b'..', text)
      self._escaped = text.endswith(b'\\')
    parts = text.split(b'"')  # By turns outside and inside of strings.
    inside, outside = parts[1 - self._quoted :: 2], parts[self._quoted :: 2]
    self._quoted ^= len(parts) % 2 == 0
    bare = b' '.join(outside)
    if max(map(len, inside), default=0) > MAX_TOKEN or _has_long_token(bare):
      raise UserError(
        f'{self._path} holds a number or string of more than {MAX_TOKEN:,} '
        'characters; it is refused.'
      )
    brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
    # Bit 1 tells [ and { from ] and }.
    depths = self._depth + np.cumsum((brackets & 2).astype(np.int64) - 1)
    if depths.max(initial=0) > MAX_DEPTH:
      raise UserError(
        f'{self._path} holds brackets nested more than {MAX_DEPTH} deep; it is refused.'
      )
    self._depth = int(depths[-1]) if len(depths) else self._depth
    return data


def _has_long_token(text: bytes) -> bool:
  """Whether a number of more than `MAX_TOKEN` bytes is in JSON without its strings."""
  at = 0
  while at + MAX_TOKEN < len(text):
    comma = text.rfind(b',', at, at + MAX_TOKEN + 1)
    if comma < 0:  # Hardly ever: a long stretch of other characters.
      return max(map(len, _BETWEEN_TOKENS.split(text[at:]))) > MAX_TOKEN
    at = comma + 1
  return False


def check_expanded(path: pathlib.Path, expanded: int) -> None:
  """Raises `UserError` if so many bytes in a file of its size are a bomb."""
  if expanded > max(MAX_EXPANDED_BYTES, MAX_RATIO * path.stat().st_size):
    raise UserError(
      f'{path} expands to {expanded / 2**20:.0f} MiB, over {MAX_RATIO} times its '
      'size; it is refused.'
    )


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an .npz file.

  Raises:
    UserError: if it is damaged, expands beyond the bounds, or holds pickled
      objects, which are never unpickled.
  """
  with reading(path):
    with zipfile.ZipFile(path) as archive:
      expanded = sum(info.file_size for info in archive.infolist())
    check_expanded(path, expanded)
    try:
      with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}
    except ValueError as e:
      if 'pickle' not in str(e).lower():
        raise
      raise UserError(
        f'{path} holds pickled objects, which are never unpickled; save plain arrays.'
      ) from e


def inside(folder: pathlib.Path, name: str, source: pathlib.Path) -> pathlib.Path:
  """The file `name`, which `source` mentions, below `folder`.

  Raises:
    UserError: if the name leads out of the folder.
  """
  parts = pathlib.PurePosixPath(name.replace('\\', '/'))
  bad = {':', '\0'} & set(name)
  if not name or parts.is_absolute() or '..' in parts.parts or bad:
    raise UserError(f'{source} names {name!r}, which is not a file below {folder}.')
  return folder / parts


def total_size(paths: Iterable[pathlib.Path]) -> int:
  """Bytes of some files; raises `UserError` if one is absent."""
  try:
    return sum(p.stat().st_size for p in paths)
  except OSError as e:
    raise UserError(f'Cannot read {e.filename}: {e.strerror}.') from e


def digest(files: Iterable[pathlib.Path], salt: str = '') -> str:
  """SHA-256 of names and contents, whatever the files' order."""
  total = hashlib.sha256(salt.encode())
  for path in sorted(files):
    with reading(path), path.open('rb') as f:
      total.update(path.name.encode() + hashlib.file_digest(f, 'sha256').digest())
  return total.hexdigest()


def cache_path(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Where the arrays of a data set are kept: in the user's own cache folder.

  Not beside the data, which may come from another person, with links or a forged cache
  in it, or lie on a read-only disk. Each user of shared data parses them once.

  Args:
    folder: of the data.
    name: of the data set; two that read one folder have caches of their own.
  """
  base = os.environ.get('XDG_CACHE_HOME', '')
  # As the XDG specification says, a relative path is ignored.
  root = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / '.cache'
  which = hashlib.sha256(f'{name}\0{folder.resolve()}'.encode(errors='surrogateescape'))
  return root / 'fesem_jax' / 'data' / f'{which.hexdigest()[:32]}.npz'


def _make_private(folder: pathlib.Path) -> None:
  """Makes a folder that only this user may change, or refuses one that is not so."""
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  found = folder.lstat()
  mine = not hasattr(os, 'getuid') or found.st_uid == os.getuid()
  if not stat.S_ISDIR(found.st_mode) or not mine or found.st_mode & 0o022:
    raise UserError(f'{folder} is not a folder that only this user may write to.')


def cached(
  folder: pathlib.Path,
  name: str,
  key: Callable[[], str],
  size: int,
  build: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
  """Arrays that take long to build, kept in a file.

  Args:
    folder: see `cache_path`.
    name: see `cache_path`.
    key: of what the arrays are built from, e.g. `digest` of the files; the cache is
      replaced as a whole when it changes.
    size: bytes that are read to build them; small ones are not cached.
    build: makes the arrays.
  """
  if size < MIN_CACHED_BYTES:
    return build()
  try:
    with reading('The cache folder'):
      path = cache_path(folder, name)
      _make_private(path.parent)
  except UserError as e:
    logging.warning('%s The data is read from scratch at every start.', e)
    return build()
  wanted = key()
  with contextlib.suppress(UserError):  # No cache, or one that is damaged.
    held = read_npz(path)
    if str(held.pop('key', None)) == wanted:
      return held
  arrays = build()
  try:
    write_arrays_atomically(path, arrays | {'key': np.array(wanted)}, compress=False)
  except UserError as e:
    logging.warning('%s The next start reads the data from scratch.', e)
  return arrays
