"""CIFAR-10 and CIFAR-100 from their official files, binary or for Python.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. A record is one label byte
(CIFAR-100: the coarse and the fine label) and 3,072 bytes of an image of 32 by 32:
1,024 of red, then of green, then of blue, row by row. The files for Python, which
torchvision downloads, are pickled dicts of `data` [N, 3072] and lists of labels.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from fesem_jax.data import cache
from fesem_jax.data.pool import Pool
from fesem_jax.utils import array_checks, array_pickles
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import opened, reading

LABELS = ('fine', 'coarse')  # Of CIFAR-100: 100 classes in 20 groups.

_SIDE, _CHANNELS = 32, 3
_PIXELS = _SIDE * _SIDE * _CHANNELS


class _Format(NamedTuple):
  """The files of a data set."""

  title: str  # of the data set
  archive: str  # what to download
  folder: str  # what the archive unpacks to
  train: tuple[str, ...]  # names of the training files
  test: str  # name of the test file
  python: tuple[str, tuple[str, ...], str]  # folder, training files, test file
  # Name and number of classes of each label byte of a record.
  classes: tuple[tuple[str, int], ...]


_FORMATS = {
  'cifar10': _Format(
    'CIFAR-10',
    'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
    'cifar-10-batches-bin',
    tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
    'test_batch.bin',
    (
      'cifar-10-batches-py',
      tuple(f'data_batch_{i}' for i in range(1, 6)),
      'test_batch',
    ),
    (('', 10),),
  ),
  'cifar100': _Format(
    'CIFAR-100',
    'https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz',
    'cifar-100-binary',
    ('train.bin',),
    'test.bin',
    ('cifar-100-python', ('train',), 'test'),
    (('coarse', 20), ('fine', 100)),
  ),
}

FOLDERS = {name: kind.folder for name, kind in _FORMATS.items()}
PYTHON_FOLDERS = {name: kind.python[0] for name, kind in _FORMATS.items()}


def load(name: str, data_dir: pathlib.Path, labels: str = '') -> Pool:
  """A data set from its binary files; images [T, 32, 32, 3] uint8.

  Args:
    name: 'cifar10' or 'cifar100'.
    data_dir: folder that holds `cifar-10-batches-bin/` or `cifar-100-binary/`.
    labels: of CIFAR-100, one of `LABELS`.

  Raises:
    UserError: if a file is absent, is not made of whole records, or holds a label that
      the data set does not have.
  """
  kind = _FORMATS[name]
  folder = data_dir / kind.folder
  train, test = [folder / file for file in kind.train], folder / kind.test

  def build() -> dict[str, np.ndarray]:
    parts = [_read(path, kind) for path in train]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    test_x, test_y = _read(test, kind)
    return {'x': x, 'y': y, 'test_x': test_x, 'test_y': test_y}

  files = [*train, test]
  salt = f'{name} 1'
  arrays = cache.cached(
    folder,
    salt,
    lambda: cache.digest(files, salt),
    cache.total_size(files),
    build,
    stored=('x', 'test_x'),
  )
  column = [label for label, _ in kind.classes].index(labels)
  return Pool(
    arrays['x'],
    arrays['y'][:, column],
    kind.classes[column][1],
    scale=1 / 255,
    test_x=arrays['test_x'],
    test_y=arrays['test_y'][:, column],
  )


def load_python(name: str, data_dir: pathlib.Path, labels: str = '') -> Pool:
  """A data set from its files for Python; the arguments and errors are those of `load`.

  Only arrays and lists are unpickled.
  """
  kind = _FORMATS[name]
  folder, train, test = kind.python
  paths = [data_dir / folder / file for file in (*train, test)]
  *parts, (test_x, test_y) = [_read_python(path, kind, labels) for path in paths]
  x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
  return Pool(x, y, dict(kind.classes)[labels], 1 / 255, test_x, test_y)


def _read_python(
  path: pathlib.Path, kind: _Format, labels: str
) -> tuple[np.ndarray, np.ndarray]:
  """Images [N, 32, 32, 3] uint8 of a pickle, and labels [N] int32."""
  held = array_pickles.read_pickle(path)
  with reading(path):  # Keys are bytes where Python 3 has saved what it read as such.
    held = {k.decode() if isinstance(k, bytes) else k: v for k, v in held.items()}
    x = np.asarray(held['data'])
    y = np.asarray(held[f'{labels}_labels' if labels else 'labels'])
    return _images(x), array_checks.labels(y, str(path), dict(kind.classes)[labels])


def _images(pixels: np.ndarray) -> np.ndarray:
  planes = pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE)
  return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _read(path: pathlib.Path, kind: _Format) -> tuple[np.ndarray, np.ndarray]:
  """Images [N, 32, 32, 3] uint8 of a file, and labels [N, columns] int32."""
  with opened(path) as f:
    raw = f.read()
  columns = len(kind.classes)
  size = columns + _PIXELS
  records = np.frombuffer(raw, np.uint8).reshape(-1, size)
  labels = records[:, :columns].astype(np.int32)
  most = np.array([classes for _, classes in kind.classes])
  check((labels < most).all(), f'{path}: labels must be below {most}')
  return _images(records[:, columns:]), labels
