"""TensorFlow Federated's fed_emnist, without TensorFlow.

The same data in two formats, FEMNIST by writer with a white background:
  fed_emnist_{train,test}.h5       examples/<client>/{pixels, label}
  emnist_all.sqlite                tables client_metadata and examples, whose
                                   rows are serialized tf.train.Example; splits
                                   all_train and all_test
Digits only: fed_emnist_digitsonly_{train,test}.h5, and the splits digits_only_train and
digits_only_test.
"""

import contextlib
import functools
import itertools
import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.data import leaf
from fesem_jax.data.pool import Examples, Pool, cached_pool
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import reading

if TYPE_CHECKING:
  import h5py

_SPLITS = ('train', 'test')
_HDF5 = 'fed_emnist{}_{}.h5'
_TFF_SQLITE = 'emnist_all.sqlite'
_DIGITS_CLASSES = 10


def load_femnist(folder: pathlib.Path, digits: bool = False) -> Pool:
  """FEMNIST from the first of the two formats that the folder holds.

  `digits` takes the files of digits only, which are also taken where there are no
  others. Raises `UserError` if the folder holds none, or a file is damaged.
  """
  choices = []
  for only in (True,) if digits else (False, True):
    kind = '_digitsonly' if only else ''
    splits = [f'{"digits_only" if only else "all"}_{split}' for split in _SPLITS]
    formats: list[tuple[list[str], Callable[[pathlib.Path, str], Iterator[Any]]]] = [
      ([_HDF5.format(kind, s) for s in _SPLITS], _read_hdf5),
      ([_TFF_SQLITE] * 2, _read_tff_sqlite),
    ]
    classes = _DIGITS_CLASSES if only else leaf.FEMNIST_CLASSES
    for names, read in formats:
      paths = [folder / name for name in names]
      if all(p.is_file() for p in paths):
        return cached_pool(
          folder,
          f'tff femnist{kind} 1',
          classes,
          1 / 255,
          functools.partial(_both_splits, read, paths, splits, classes),
          sorted(set(paths)),
        )
      choices.append(' and '.join(dict.fromkeys(names)))
  raise UserError(f'{folder} must hold {", or ".join(dict.fromkeys(choices))}.')


def _both_splits(
  read: Callable, paths: list[pathlib.Path], splits: list[str], classes: int
) -> tuple[dict[str, Examples], dict[str, Examples]]:
  train, test = (
    _clients(read, p, s, classes) for p, s in zip(paths, splits, strict=True)
  )
  return train, test


def _clients(
  read: Callable, path: pathlib.Path, split: str, classes: int
) -> dict[str, Examples]:
  """Name -> images [N, 28, 28] uint8 and labels."""
  clients: dict[str, Examples] = {}
  with reading(path):
    for client_id, pixels, labels in read(path, split):
      name = client_id.decode() if isinstance(client_id, bytes) else client_id
      where = f'{path}, client {name}'
      labels = np.asarray(labels).reshape(-1)
      if len(labels):
        images = array_checks.to_bytes(pixels, where)
        clients[name] = images, array_checks.labels(labels, where, classes)
  return clients


# (client id, pixels [N, 28, 28], labels [N] or [N, 1])
_Client = tuple[Any, np.ndarray, np.ndarray]


def _read_hdf5(path: pathlib.Path, split: str) -> Iterator[_Client]:
  for name, (pixels, labels) in hdf5_clients(path, 'pixels', 'label'):
    yield name, pixels, labels


def hdf5_clients(
  path: pathlib.Path, *names: str
) -> Iterator[tuple[str, list[np.ndarray]]]:
  """(client id, some arrays of the client) from a file of TensorFlow Federated."""
  with _opened(path) as file:
    for name in file['examples']:
      yield name, [_hdf5_array(file, f'examples/{name}', k)[()] for k in names]


def hdf5_client(path: pathlib.Path, client: str, *names: str) -> list[np.ndarray]:
  """Some arrays of one client; see `hdf5_clients`."""
  with _opened(path) as file:
    return [_hdf5_array(file, f'examples/{client}', k)[()] for k in names]


def hdf5_sizes(path: pathlib.Path, name: str) -> dict[str, int]:
  """Client id -> the number of examples, by the length of an array."""
  with _opened(path) as file:
    return {
      client: _hdf5_array(file, f'examples/{client}', name).size
      for client in file['examples']
    }


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> 'Iterator[h5py.File]':
  import h5py

  with h5py.File(path) as file:
    yield file


def _hdf5_array(file: 'h5py.File', group: str, name: str) -> 'h5py.Dataset':
  """An array of a file; `[()]` reads it."""
  return file[group][name]


def _rows(path: pathlib.Path, query: str, *values: str) -> Iterator[Any]:
  """Rows of a query on a database that is not written to."""
  connection = sqlite3.connect(f'{path.absolute().as_uri()}?mode=ro', uri=True)
  with contextlib.closing(connection):
    yield from connection.execute(query, values)


def _read_tff_sqlite(path: pathlib.Path, split: str) -> Iterator[_Client]:
  rows = _rows(
    path,
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY client_id, rowid',
    split,
  )
  for client_id, mine in itertools.groupby(rows, lambda row: row[0]):
    with reading(f'{path}, client {client_id}'):
      images, labels = zip(*(_example(blob) for _, blob in mine), strict=True)
    yield client_id, np.stack(images), np.array(labels)


def _example(blob: bytes) -> tuple[np.ndarray, int]:
  """Pixels [28, 28] and label of a serialized tf.train.Example."""
  # TensorFlow Datasets brings the message without TensorFlow.
  from tensorflow_datasets.proto import tf_example_pb2

  feature = tf_example_pb2.Example.FromString(blob).features.feature
  pixels = np.array(feature['pixels'].float_list.value, np.float32)
  (label,) = feature['label'].int64_list.value
  return pixels.reshape(28, 28), label
