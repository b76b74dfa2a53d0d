"""LEAF's JSON layout: a folder of train/*.json and test/*.json.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Every file
holds `users`, `num_samples` and `user_data: {user: {x, y}}`. Files are parsed
one user at a time, since the full FEMNIST is several GB of text.
"""

import codecs
import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import ijson
import numpy as np

from fesem_jax.data.pool import Examples, Pool, cached_pool
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.safe_files import opened, reading
from fesem_jax.utils.stored_rows import Rows, changed, take

# (x of one user as parsed, file and user for errors) -> [N, ...] features.
Convert = Callable[[list[Any], str], np.ndarray]

FEMNIST_CLASSES = 62  # 0-9, A-Z, a-z.
BACKGROUNDS = ('white', 'black')
USERS = ('', 'all', 'train', 'test')

_EXTENSIONS = ('.json', '.json.gz')


def shards(folder: pathlib.Path) -> list[pathlib.Path]:
  """The JSON files of a folder, plain or gzipped, sorted."""
  with reading(folder):
    if not folder.is_dir():
      return []
    return sorted(
      p
      for p in folder.iterdir()
      if p.name.lower().endswith(_EXTENSIONS) and p.is_file() and p.name[0] != '.'
    )


def read_clients(
  paths: list[pathlib.Path],
  convert: Convert,
  num_classes: int | None = None,
  convert_labels: Convert | None = None,
  task: str = CLASSIFICATION.name,
) -> dict[str, Examples]:
  """Examples of each user in some shards, which are JSON files.

  `convert` turns a user's x into features, and `convert_labels` a user's y into
  numbers, where they are none; labels must lie below `num_classes`, if given. `task`,
  a name of `tasks.TASKS`, is what y is for. Raises a `UserError` that names file and
  user if a file is damaged.
  """
  clients: dict[str, Examples] = {}
  origin: dict[str, pathlib.Path] = {}
  for path in paths:
    announced = _announced(path)
    for user, block in _blocks(path):
      where = f'{path}, user {user}'
      if user in clients:
        raise UserError(
          f'{where}: the user is also in {origin[user]}; remove one of them.'
        )
      x, y = (block.get(key) if isinstance(block, dict) else None for key in ('x', 'y'))
      if user not in announced:
        if x == [] == y:  # LEAF's split_data.py left such users there until 2020.
          continue
        raise UserError(
          f'{where}: user_data holds the user, but users does not; '
          'preprocess the data again.'
        )
      count = announced.pop(user)
      if x is None or y is None:
        raise UserError(f'{where}: lacks the lists x and y')
      if not len(x) == len(y) == count:
        raise UserError(
          f'{where}: {len(x)} examples and {len(y)} labels, but num_samples says '
          f'{count}; preprocess the data again.'
        )
      if count:
        with reading(where):
          numbers = y if convert_labels is None else convert_labels(y, where)
          targets = TASKS[task].targets(numbers, where, num_classes)
          clients[user] = convert(x, where), targets
        origin[user] = path
    if announced:
      raise UserError(f'{path}: user_data lacks user {next(iter(announced))}.')
  return clients


def _announced(path: pathlib.Path) -> dict[str, int]:
  """User -> number of examples, from the lists at the head of the file."""
  users: list[Any] = []
  counts: list[Any] = []
  ended = set()
  with _json(path) as f:
    for prefix, event, value in ijson.parse(f, use_float=True):
      if prefix == 'users.item':
        users.append(value)
      elif prefix == 'num_samples.item':
        counts.append(value)
      elif event == 'end_array' and prefix in ('users', 'num_samples'):
        ended.add(prefix)
        if len(ended) == 2:
          break
  return dict(zip(users, counts, strict=True))


@contextlib.contextmanager
def _json(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A file behind the mark with which Windows' editors begin UTF-8."""
  with opened(path) as file:
    if file.read(3) != codecs.BOM_UTF8:
      file.seek(0)
    yield file


def _blocks(path: pathlib.Path):
  """(user, {x, y}) of a file, parsed one at a time."""
  with _json(path) as f:
    yield from ijson.kvitems(f, 'user_data', use_float=True, buf_size=2**20)


def find_splits(
  folder: pathlib.Path,
) -> tuple[list[pathlib.Path], list[pathlib.Path] | None]:
  """Shards of the training and of the test split.

  A folder with `all_data/` instead is not split; the test shards are None. Raises
  `UserError` if there are none.
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
  folder: pathlib.Path,
  convert: Convert,
  num_classes: int | None = None,
  convert_labels: Convert | None = None,
  task: str = CLASSIFICATION.name,
  users: str = '',
) -> tuple[dict[str, Examples], dict[str, Examples] | None]:
  """Training and test examples of each user of a LEAF folder; see `read_clients`.

  If its splits have other users each, as LEAF's `-t user` makes them, `users` must be
  given: all of them are then returned, not split, for `of_users` to choose from. Raises
  `UserError` also if it is given otherwise.
  """
  train, test = find_splits(folder)
  how = convert, num_classes, convert_labels, task
  trained = read_clients(train, *how)
  tested = None if test is None else read_clients(test, *how)
  apart = bool(trained and tested) and not set(trained) & set(tested or ())
  if tested is None or not apart:
    return trained, tested
  if not users:
    raise UserError(
      f'{folder}: the users of train/ and test/ differ, as preprocess.sh -t user '
      'splits them. `leaf_users=all` takes all of them, each split 80/20, as if their '
      'files were in all_data/, and `unseen_fraction` sets some aside for evaluation; '
      '`leaf_users=train` and `leaf_users=test` take those of one.'
    )
  return trained | tested, None


def of_users(pool: Pool, folder: pathlib.Path, users: str) -> Pool:
  """The clients of a pool that are users of one split of a LEAF folder.

  `users` is 'train' or 'test'; of other values, all clients stay.
  """
  if users not in ('train', 'test'):
    return pool
  assert pool.client is not None
  assert pool.names is not None
  _, test = find_splits(folder)
  tested = [user for path in test or [] for user in _announced(path)]
  kept = np.isin(pool.names, tested) == (users == 'test')
  rows = np.flatnonzero(kept[pool.client])
  numbers = (np.cumsum(kept) - 1)[pool.client[rows]]
  return pool._replace(
    x=take(pool.x, rows), y=pool.y[rows], client=numbers, names=pool.names[kept]
  )


def features(x: list[Any], where: str) -> np.ndarray:
  """Any numbers, as float32."""
  with np.errstate(over='ignore'):
    return array_checks.numbers(x, where).astype(np.float32)


def gray_images(x: list[Any], where: str) -> np.ndarray:
  """[N, 28, 28] uint8 from rows of 784 pixels between 0 and 1."""
  pixels = array_checks.numbers(x, where)
  return array_checks.to_bytes(pixels, where).reshape(len(x), 28, 28)


def invert(pool: Pool) -> Pool:
  """Images [.., uint8] with black and white exchanged."""

  def inverted(x: Rows) -> Rows:
    return changed(x, lambda gray: 255 - gray)

  test_x = None if pool.test_x is None else inverted(pool.test_x)
  return pool._replace(x=inverted(pool.x), test_x=test_x)


def load_femnist(folder: pathlib.Path, users: str = '') -> Pool:
  """FEMNIST from LEAF's JSON: a client per writer, white background = 255."""
  train, test = find_splits(folder)

  def read():
    return read_folder(folder, gray_images, FEMNIST_CLASSES, users=users)

  paths, name = [*train, *(test or [])], 'femnist 1' + ' users' * bool(users)
  pool = cached_pool(folder, name, FEMNIST_CLASSES, 1 / 255, read, paths)
  return of_users(pool, folder, users)


def load_folder(folder: pathlib.Path, task: str = '', users: str = '') -> Pool:
  """Any LEAF data set of numbers: a client per user.

  `task`, a name of `tasks.TASKS`, is what its y is for; '' is classification. `users`
  are those of `of_users`.
  """
  train, test = find_splits(folder)
  task = task or CLASSIFICATION.name
  check_choice('task', task, tuple(TASKS))

  def read():
    return read_folder(folder, features, task=task, users=users)

  name = 'leaf 1' if task == CLASSIFICATION.name else f'leaf 1 {task}'
  name, paths = name + ' users' * bool(users), [*train, *(test or [])]
  pool = cached_pool(folder, name, 0, 1.0, read, paths, task=task)
  return of_users(pool, folder, users)
