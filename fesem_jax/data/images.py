"""Images in idx files (MNIST and its kind) and in CIFAR's files."""

import pathlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fesem_jax.data import tff
from fesem_jax.data.reading import Arrays, Request, both_splits, find
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice, checked
from fesem_jax.utils.safe_files import opened, read_pickle, reading

# Split of EMNIST -> first label in its files, number of classes.
EMNIST_SPLITS = {
  'byclass': (0, 62), 'bymerge': (0, 47), 'balanced': (0, 47), 'letters': (1, 26),
  'digits': (0, 10), 'mnist': (0, 10),
}  # fmt: skip
_CIFAR10 = (
  *('airplane', 'automobile', 'bird', 'cat', 'deer'),
  *('dog', 'frog', 'horse', 'ship', 'truck'),
)
_LABEL, _SERIES, _WRITER = 0, 1, 2  # Columns of QMNIST's labels.


def read_idx(path: pathlib.Path) -> np.ndarray:
  """The bytes or 32-bit integers of an idx file, plain or, as `path`.gz, gzipped."""
  with opened(path if path.exists() else path.with_name(f'{path.name}.gz')) as file:
    raw = file.read()
    dtype, ndim = {8: 'u1', 12: '>i4'}[raw[2]], raw[3]
    shape = np.frombuffer(raw, '>u4', ndim, 4)
    return np.frombuffer(raw, dtype, offset=4 + 4 * ndim).reshape(shape)


def _idx_splits(
  folder: pathlib.Path, prefixes: Sequence[str] = ('train', 't10k')
) -> Arrays:
  files = {'x': 'images-idx3-ubyte', 'y': 'labels-idx1-ubyte'}
  train, test = (
    {name: read_idx(folder / f'{prefix}-{file}') for name, file in files.items()}
    for prefix in prefixes
  )
  return both_splits(train, test)


def mnist(request: Request) -> Arrays:
  """MNIST, from mnist/ or torchvision's MNIST/raw/."""
  return _idx_splits(find(request, 'mnist', 'MNIST/raw')) | {'num_classes': 10}


def fashion_mnist(request: Request) -> Arrays:
  """Fashion-MNIST, from fashion_mnist/ or torchvision's FashionMNIST/raw/."""
  folder = find(request, 'fashion_mnist', 'FashionMNIST/raw')
  return _idx_splits(folder) | {'num_classes': 10}


def emnist(request: Request, split: str = 'byclass') -> Arrays:
  """EMNIST, upright, from emnist/ or torchvision's EMNIST/raw/."""
  check_choice('split', split, tuple(EMNIST_SPLITS))
  prefixes = [f'emnist-{split}-{part}' for part in ('train', 'test')]
  arrays = _idx_splits(find(request, 'emnist', 'EMNIST/raw'), prefixes)
  first, num_classes = EMNIST_SPLITS[split]
  # Transposed in the files.
  arrays |= {'x': arrays['x'].swapaxes(1, 2), 'y': arrays['y'].astype(int) - first}
  return arrays | {'num_classes': num_classes}


def mnist_writers(request: Request) -> Arrays:
  """MNIST by writer, from its files and qmnist/: the cluster is the series of forms.

  MNIST's own split separates writers, so each writer is split 80/20 instead.
  """
  arrays, folder = mnist(request), find(request, 'qmnist')
  counts = np.bincount(arrays.pop('split'))
  table = np.concatenate([
    read_idx(folder / f'qmnist-{name}-labels-idx2-int')[:count]
    for name, count in zip(('train', 'test'), counts, strict=True)
  ])  # fmt: skip
  match = np.array_equal(table[:, _LABEL], arrays['y'])
  check(match, f'{folder}: labels differ from those of MNIST; download both again')
  writers = [f'writer{number:04d}' for number in table[:, _WRITER]]
  series = [f'HSF series {number}' for number in table[:, _SERIES]]
  return arrays | {'client': writers, 'cluster': series}


def cifar10(request: Request) -> Arrays:
  """CIFAR-10, from cifar-10-batches-bin/ or cifar-10-batches-py/."""
  folder = find(request, 'cifar-10-batches-bin', 'cifar-10-batches-py')
  names = [f'data_batch_{i}' for i in range(1, 6)], ['test_batch']
  return _cifar(folder, names, ('labels',), 'labels') | {'class_names': _CIFAR10}


@checked
def cifar100(request: Request, labels: Literal['fine', 'coarse'] = 'fine') -> Arrays:
  """CIFAR-100, from cifar-100-binary/, cifar-100-python/ or TFF's tff_cifar100/."""
  folder = find(request, 'cifar-100-binary', 'cifar-100-python', 'tff_cifar100')
  if folder.name == 'tff_cifar100':
    arrays = tff.fed_cifar100(folder, labels)
  else:
    columns = ('coarse_labels', 'fine_labels')
    arrays = _cifar(folder, (['train'], ['test']), columns, f'{labels}_labels')
  return arrays | {'num_classes': 100 if labels == 'fine' else 20}


def _cifar(
  folder: pathlib.Path, names: Sequence[Sequence[str]], columns: Sequence[str], y: str
) -> Arrays:
  """Both splits; `columns` are the label bytes of a record of a binary file."""
  splits = []
  for files in names:
    parts = [_cifar_file(folder / name, columns, y) for name in files]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    planes = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    splits.append({'x': np.ascontiguousarray(planes), 'y': labels})
  return both_splits(*splits)


def _cifar_file(
  path: pathlib.Path, columns: Sequence[str], column: str
) -> tuple[np.ndarray, np.ndarray]:
  """Pixels [N, 3072] uint8 and labels [N] of a file, pickled or binary."""
  if path.parent.name.endswith(('py', 'python')):
    pickled = read_pickle(path)
    with reading(path):
      # Keys are bytes where Python 3 has saved what it read as such.
      arrays = {k.decode() if isinstance(k, bytes) else k: pickled[k] for k in pickled}
      return np.asarray(arrays['data']), np.asarray(arrays[column])
  with opened(path.with_name(f'{path.name}.bin')) as file:
    width = len(columns)
    records = np.frombuffer(file.read(), np.uint8).reshape(-1, width + 3072)
    return records[:, width:], records[:, columns.index(column)]
