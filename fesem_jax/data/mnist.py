"""Idx files of MNIST and of sets in its form; MNIST by writer through QMNIST's labels.

Formats: http://yann.lecun.com/exdb/mnist (idx) and
https://github.com/facebookresearch/qmnist (the eight label columns).
"""

import pathlib

import numpy as np

from fesem_jax.data.pool import Pool
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.safe_files import opened

_DTYPES: dict[int, np.dtype] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype('>i4')}

TORCHVISION = 'MNIST/raw'  # Where torchvision puts the files.
# Split of EMNIST -> first label in its files, number of classes.
EMNIST_SPLITS = {
  'byclass': (0, 62), 'bymerge': (0, 47), 'balanced': (0, 47), 'letters': (1, 26),
  'digits': (0, 10), 'mnist': (0, 10),
}  # fmt: skip

# Columns of QMNIST's label files.
_LABEL, _HSF, _WRITER = 0, 1, 2
_HSF_SERIES = 8  # NIST numbers its series of forms from 0 to 7.


def read_idx(path: pathlib.Path, ndim: int) -> np.ndarray:
  """The uint8 or int32 array with `ndim` axes of an idx file, plain or gzipped.

  `path` is with or without `.gz`; whichever exists is read. Raises `UserError` if the
  file is absent, truncated or not such an idx file.
  """
  files = [p for p in (path, path.with_name(path.name + '.gz')) if p.is_file()]
  path = files[0]
  with opened(path) as f:
    raw = f.read()
  if len(raw) < 4 or raw[:2] != b'\0\0' or raw[2] not in _DTYPES or raw[3] != ndim:
    raise UserError(
      f'{path} has magic number 0x{raw[:4].hex()}, which is not an idx file of '
      f'{ndim} axes of bytes or 32-bit integers.'
    )
  dtype = _DTYPES[raw[2]]
  header = 4 + 4 * ndim
  shape = tuple(np.frombuffer(raw, '>u4', ndim, 4).tolist())
  array = np.frombuffer(raw, dtype, offset=header).reshape(shape)
  return array if dtype == np.uint8 else array.astype(np.int32)


def _read_split(
  folder: pathlib.Path, prefix: str, first: int = 0, num_classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
  images_path = folder / f'{prefix}-images-idx3-ubyte'
  labels_path = folder / f'{prefix}-labels-idx1-ubyte'
  images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
  if len(images) != len(labels):
    raise UserError(
      f'{images_path} holds {len(images)} images, but {labels_path} holds '
      f'{len(labels)} labels; they must match.'
    )
  last = first + num_classes - 1
  inside = (labels >= first) & (labels <= last)
  check(inside.all(), f'{labels_path}: labels must be {first}..{last}')
  return images, labels if first == 0 else labels - np.uint8(first)


def load(data_dir: pathlib.Path, name: str = 'mnist') -> Pool:
  """MNIST from `data_dir/mnist`: 60,000 training and 10,000 test images 28x28.

  `name` is another folder below `data_dir`, also of Fashion-MNIST.

  Raises `UserError` if a file is absent or damaged, or images and labels do not match.
  """
  x, y = _read_split(data_dir / name, 'train')
  test_x, test_y = _read_split(data_dir / name, 't10k')
  return Pool(x, y, 10, scale=1 / 255, test_x=test_x, test_y=test_y)


def load_emnist(folder: pathlib.Path, split: str) -> Pool:
  """A split of EMNIST, one of `EMNIST_SPLITS`, upright; in the files it is transposed.

  Raises `UserError` as `load` does.
  """
  first, num_classes = EMNIST_SPLITS[split]
  parts = []
  for part in ('train', 'test'):
    prefix = f'emnist-{split}-{part}'
    images, labels = _read_split(folder, prefix, first, num_classes)
    parts += [np.ascontiguousarray(images.swapaxes(1, 2)), labels]
  return Pool(parts[0], parts[1], num_classes, 1 / 255, parts[2], parts[3])


def _folder(data_dir: pathlib.Path) -> pathlib.Path:
  """Where the files of MNIST lie, unless nowhere."""
  own, torchvision = data_dir / 'mnist', data_dir / TORCHVISION
  return torchvision if torchvision.is_dir() and not own.is_dir() else own


def load_writers(data_dir: pathlib.Path) -> Pool:
  """MNIST by writer: a client per NIST writer, true cluster = HSF series.

  Joins `data_dir/mnist` (or `data_dir/MNIST/raw`) with
  `data_dir/qmnist/qmnist-{train,test}-labels-idx2-int` row by row. MNIST's own split
  separates writers, so both halves are pooled and each writer is split on its own.
  Raises `UserError` as `load` does, or if the QMNIST rows do not belong to these
  images.
  """
  xs, ys, rows = [], [], []
  for prefix, name in (('train', 'train'), ('t10k', 'test')):
    x, y = _read_split(_folder(data_dir), prefix)
    path = data_dir / 'qmnist' / f'qmnist-{name}-labels-idx2-int'
    table = read_idx(path, 2)
    table = table[: len(y)]
    wrong = np.flatnonzero(table[:, _LABEL] != y)
    if len(wrong):
      raise UserError(
        f'{path} does not match MNIST: {len(wrong)} labels differ, the first in '
        f'row {wrong[0]} ({table[wrong[0], _LABEL]} against {y[wrong[0]]}). '
        'Download both again.'
      )
    xs.append(x)
    ys.append(y)
    rows.append(table)
  table = np.concatenate(rows)
  writers, first, client = np.unique(
    table[:, _WRITER], return_index=True, return_inverse=True
  )
  return Pool(
    x=np.concatenate(xs),
    y=np.concatenate(ys),
    num_classes=10,
    scale=1 / 255,
    client=client,
    names=np.array([f'writer{w:04d}' for w in writers]),
    clusters=table[first, _HSF],
    cluster_names=tuple(f'HSF series {series}' for series in range(_HSF_SERIES)),
  )
