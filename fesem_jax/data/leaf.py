"""LEAF's JSON layout: a folder of train/*.json and test/*.json.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Every file
holds `users`, `num_samples` and `user_data: {user: {x, y}}`. Files are parsed
one user at a time, since the full FEMNIST is several GB of text.
"""

import collections
import pathlib
from collections.abc import Callable
from typing import Any

import ijson
import numpy as np

from fesem_jax.data import files
from fesem_jax.data.pool import Examples, Pool, from_clients
from fesem_jax.errors import UserError

# (x of one user as parsed, what to call it in a complaint) -> [N, ...] features.
Convert = Callable[[list[Any], str], np.ndarray]

FEMNIST_CLASSES = 62  # 0-9, A-Z, a-z.
BACKGROUNDS = ('white', 'black')

_EXTENSIONS = ('.json', '.json.gz')


def shards(folder: pathlib.Path) -> list[pathlib.Path]:
  """The JSON files of a folder, plain or gzipped, sorted."""
  with files.reading(folder):
    if not folder.is_dir():
      return []
    return sorted(
      p for p in folder.iterdir() if p.name.endswith(_EXTENSIONS) and p.is_file()
    )


def read_clients(
  paths: list[pathlib.Path], convert: Convert, num_classes: int | None = None
) -> dict[str, Examples]:
  """Examples of each user in some shards.

  Args:
    paths: JSON files.
    convert: turns a user's x into features.
    num_classes: labels must lie below it, if given.

  Raises:
    UserError: naming file and user.
  """
  clients: dict[str, Examples] = {}
  origin: dict[str, pathlib.Path] = {}
  for path in paths:
    announced = _announced(path)
    for user, block in _blocks(path):
      where = f'{path}, user {user}'
      if user in clients:
        raise UserError(f'{where}: the user is also in {origin[user]}.')
      if user not in announced:
        raise UserError(f'{where}: user_data holds the user, but users does not.')
      x, y = (block.get(key) if isinstance(block, dict) else None for key in ('x', 'y'))
      if not isinstance(x, list) or not isinstance(y, list):
        raise UserError(f'{where}: the entry has no lists x and y.')
      count = announced.pop(user)
      if not len(x) == len(y) == count:
        raise UserError(
          f'{where}: {len(x)} examples and {len(y)} labels, but num_samples says '
          f'{count}.'
        )
      if count:
        with files.reading(where):
          clients[user] = convert(x, where), labels(y, where, num_classes)
        origin[user] = path
    if announced:
      raise UserError(f'{path}: user_data lacks user {next(iter(announced))}.')
  return clients


def _announced(path: pathlib.Path) -> dict[str, int]:
  """User -> number of examples, from the lists at the head of the file."""
  users: list[Any] = []
  counts: list[Any] = []
  ended = set()
  with files.JsonReader(path) as f, files.reading(path):
    try:
      for prefix, event, value in ijson.parse(f, use_float=True):
        if prefix == 'users.item':
          users.append(value)
        elif prefix == 'num_samples.item':
          counts.append(value)
        elif event == 'end_array' and prefix in ('users', 'num_samples'):
          ended.add(prefix)
          if len(ended) == 2:
            break
    except ijson.JSONError as e:
      raise _damaged(path, e) from e
  if len(ended) < 2 or len(users) != len(counts):
    raise UserError(f'{path}: users and num_samples must be lists of equal length.')
  if not all(isinstance(u, str) for u in users):
    raise UserError(f'{path}: users must be a list of strings.')
  if len(set(users)) < len(users):
    (repeated, _), *_ = collections.Counter(users).most_common(1)
    raise UserError(f'{path}, user {repeated}: listed twice.')
  return dict(zip(users, counts, strict=True))


def _blocks(path: pathlib.Path):
  """(user, {x, y}) of a file, parsed one at a time."""
  with files.JsonReader(path) as f, files.reading(path):
    try:
      yield from ijson.kvitems(f, 'user_data', use_float=True, buf_size=2**20)
    except ijson.JSONError as e:
      raise _damaged(path, e) from e


def _damaged(path: pathlib.Path, e: Exception) -> UserError:
  return UserError(f'{path} is not whole JSON ({files.first_line(e)}); fetch it again.')


def labels(y: Any, where: str, num_classes: int | None) -> np.ndarray:
  """[N] int32 labels; raises `UserError` on any that is no class number."""
  numbered = numbers(y, where, 'labels')
  if (
    numbered.ndim != 1
    or (numbered != np.round(numbered)).any()
    or numbered.min(initial=0) < 0
  ):
    raise UserError(f'{where}: labels must be whole numbers from 0.')
  most = num_classes or MAX_CLASSES
  if numbered.max(initial=0) >= most:
    raise UserError(f'{where}: label {numbered.max():.0f} is not in 0..{most - 1}.')
  return numbered.astype(np.int32)


def numbers(values: Any, where: str, what: str) -> np.ndarray:
  """Parsed JSON as a float64 array.

  Raises:
    UserError: if it holds anything but numbers, or rows of several lengths.
  """
  try:
    array = np.asarray(values)
  except ValueError as e:
    raise UserError(f'{where}: {what} of different lengths.') from e
  if array.size and array.dtype.kind not in 'iuf':
    raise UserError(f'{where}: {what} that are not numbers.')
  return array.astype(np.float64)


# Labels beyond are a mistake, such as ids in place of labels.
MAX_CLASSES = 2**20


def find_splits(
  folder: pathlib.Path,
) -> tuple[list[pathlib.Path], list[pathlib.Path] | None]:
  """Shards of the training and of the test split.

  A folder with `all_data/` instead is not split; the test shards are None.

  Raises:
    UserError: if there are none.
  """
  train, test = shards(folder / 'train'), shards(folder / 'test')
  if train and test:
    return train, test
  if everything := shards(folder / 'all_data'):
    return everything, None
  raise UserError(
    f"{folder} must hold LEAF's train/*.json and test/*.json (or all_data/*.json)."
  )


def read_folder(
  folder: pathlib.Path, convert: Convert, num_classes: int | None = None
) -> tuple[dict[str, Examples], dict[str, Examples] | None]:
  """Training and test examples of each user of a LEAF folder."""
  train, test = find_splits(folder)
  return (
    read_clients(train, convert, num_classes),
    None if test is None else read_clients(test, convert, num_classes),
  )


def cached_pool(
  folder: pathlib.Path, name: str, num_classes: int, scale: float,
  read: Callable[[], tuple[dict[str, Examples], dict[str, Examples] | None]],
  paths: list[pathlib.Path], key: Callable[[], str] | None = None,
) -> Pool:  # fmt: skip
  """A pool of natural clients, cached as `files.cache_path` says.

  Args:
    folder: that the files lie in.
    name: of what is read; part of the cache's name and key.
    num_classes: L; 0 takes one more than the largest label.
    scale: see `Pool`.
    read: reads the training and test examples of each client.
    paths: files that are read.
    key: digest of what is read; by default of the files' contents.
  """

  def build() -> dict[str, np.ndarray]:
    pool = from_clients(*read(), where=folder, num_classes=0, scale=scale)
    arrays = {field: getattr(pool, field) for field in _ARRAYS}
    return {field: a for field, a in arrays.items() if a is not None}

  key = key or (lambda: files.digest(paths, name))
  arrays = files.cached(folder, name, key, files.total_size(paths), build)
  labels = [arrays[f].max(initial=0) for f in ('y', 'test_y') if f in arrays]
  classes = num_classes or int(max(labels)) + 1
  return Pool(num_classes=classes, scale=scale, **arrays)


_ARRAYS = ('x', 'y', 'test_x', 'test_y', 'client', 'names', 'test_client')


def features(x: list[Any], where: str) -> np.ndarray:
  """Any numbers, as float32."""
  with np.errstate(over='ignore'):
    array = numbers(x, where, 'features').astype(np.float32)
  if not np.isfinite(array).all():
    raise UserError(f'{where}: features that do not fit 32-bit floats.')
  return array


def gray_images(x: list[Any], where: str) -> np.ndarray:
  """[N, 28, 28] uint8 from rows of 784 pixels between 0 and 1."""
  pixels = numbers(x, where, 'pixels')
  if pixels.ndim != 2 or pixels.shape[1] != 784:
    raise UserError(
      f'{where}: images of {pixels.shape[1:]} pixels; FEMNIST has 784, 28 by 28.'
    )
  return to_bytes(pixels, where).reshape(-1, 28, 28)


def to_bytes(pixels: np.ndarray, where: str) -> np.ndarray:
  """Pixels between 0 and 1, which are bytes over 255, as these bytes."""
  if not (pixels.min(initial=0) >= 0 and pixels.max(initial=1) <= 1):
    raise UserError(
      f'{where}: pixels from {pixels.min():g} to {pixels.max():g}; they must lie '
      'between 0 and 1.'
    )
  return np.round(pixels * 255).astype(np.uint8)


def invert(pool: Pool) -> Pool:
  """Images [.., uint8] with black and white exchanged."""
  test_x = None if pool.test_x is None else 255 - pool.test_x
  return pool._replace(x=255 - pool.x, test_x=test_x)


def load_femnist(folder: pathlib.Path) -> Pool:
  """FEMNIST from LEAF's JSON: a client per writer, white background = 255."""
  train, test = find_splits(folder)
  read = lambda: read_folder(folder, gray_images, FEMNIST_CLASSES)
  paths = [*train, *(test or [])]
  return cached_pool(folder, 'femnist 1', FEMNIST_CLASSES, 1 / 255, read, paths)


def load_folder(folder: pathlib.Path) -> Pool:
  """Any LEAF data set of numbers: a client per user."""
  train, test = find_splits(folder)
  read = lambda: read_folder(folder, features)
  return cached_pool(folder, 'leaf 1', 0, 1.0, read, [*train, *(test or [])])
