"""TensorFlow Federated's fed_emnist, without TensorFlow.

Three shapes of the same data, FEMNIST by writer with a white background:
  fed_emnist_{train,test}.h5       examples/<client>/{pixels, label}
  emnist_all.sqlite                tables client_metadata and examples, whose
                                   rows are serialized tf.train.Example
  fed_emnist_{train,test}.sqlite   FedJAX's: table federated_data, whose rows
                                   are zlib-compressed msgpack
"""

import functools
import pathlib
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import msgpack
import numpy as np

from fesem_jax.base import UserError
from fesem_jax.data import leaf
from fesem_jax.data.pool import Examples, Pool

_SPLITS = ('train', 'test')
_HDF5 = 'fed_emnist_{}.h5'
_FEDJAX = 'fed_emnist_{}.sqlite'
_TFF_SQLITE = 'emnist_all.sqlite'
_ROW_BYTES = 2**28  # Most that one client's compressed row may expand to.


def load_femnist(folder: pathlib.Path) -> Pool:
  """FEMNIST from whichever of the three shapes the folder holds.

  Raises:
    UserError: if it holds none, or a file is damaged.
  """
  shapes: list[tuple[list[str], Callable[[pathlib.Path, str], Iterator[Any]]]] = [
    ([_HDF5.format(s) for s in _SPLITS], _read_hdf5),
    ([_FEDJAX.format(s) for s in _SPLITS], _read_fedjax),
    ([_TFF_SQLITE] * 2, _read_tff_sqlite),
  ]
  for names, read in shapes:
    paths = [folder / name for name in names]
    if all(p.is_file() for p in paths):
      return leaf.cached_pool(
          folder, 'tff femnist 1', leaf.FEMNIST_CLASSES, 1 / 255,
          functools.partial(_both_splits, read, paths), sorted(set(paths)),
      )  # fmt: skip
  choices = ', or '.join(' and '.join(dict.fromkeys(names)) for names, _ in shapes)
  raise UserError(f'{folder} must hold {choices}.')


def _both_splits(
  read: Callable, paths: list[pathlib.Path]
) -> tuple[dict[str, Examples], dict[str, Examples]]:
  train, test = (_clients(read, p, s) for p, s in zip(paths, _SPLITS, strict=True))
  return train, test


def _clients(read: Callable, path: pathlib.Path, split: str) -> dict[str, Examples]:
  """Name -> images [N, 28, 28] uint8 and labels."""
  clients = {}
  for name, pixels, labels in read(path, split):
    where = f'{path}, client {name}'
    pixels, labels = np.asarray(pixels), np.asarray(labels).reshape(-1)
    if pixels.dtype.kind not in 'iuf' or pixels.shape != (len(labels), 28, 28):
      raise UserError(
        f'{where}: pixels of shape {pixels.shape} and type {pixels.dtype} for '
        f'{len(labels)} labels; numbers of shape ({len(labels)}, 28, 28) are needed.'
      )
    images = leaf.to_bytes(pixels, where)
    clients[name] = images, leaf.labels(labels, where, leaf.FEMNIST_CLASSES)
  return clients


def _read_hdf5(path: pathlib.Path, split: str) -> Iterator[tuple[str, Any, Any]]:
  del split
  try:
    with h5py.File(path) as file:
      if 'examples' not in file:
        raise UserError(f'{path} has no group examples; it is not fed_emnist.')
      for name, client in file['examples'].items():
        if not {'pixels', 'label'} <= set(client):
          raise UserError(f'{path}, client {name}: pixels or label is missing.')
        yield name, client['pixels'][()], client['label'][()]
  except OSError as e:
    raise UserError(f'{path} is not a whole HDF5 file ({e}); fetch it again.') from e


def _rows(path: pathlib.Path, table: str, query: str, *values: str) -> Iterator[Any]:
  """Rows of a query on a database that is not written to."""
  try:
    connection = sqlite3.connect(f'{path.absolute().as_uri()}?mode=ro', uri=True)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    if (table,) not in tables.fetchall():
      raise UserError(f'{path} has no table {table}; it is not fed_emnist.')
    yield from connection.execute(query, values)
    connection.close()
  except sqlite3.Error as e:
    raise UserError(f'{path} is not a whole database ({e}); fetch it again.') from e


def _read_fedjax(path: pathlib.Path, split: str) -> Iterator[tuple[str, Any, Any]]:
  del split
  rows = _rows(path, 'federated_data', 'SELECT client_id, data FROM federated_data')
  for client_id, blob in rows:
    name = client_id.decode() if isinstance(client_id, bytes) else str(client_id)
    try:
      unzip = zlib.decompressobj()
      raw = unzip.decompress(blob, _ROW_BYTES)
      if unzip.unconsumed_tail:
        raise UserError(
          f'{path}, client {name}: the row expands to more than '
          f'{_ROW_BYTES >> 20} MiB; it is refused.'
        )
      examples = msgpack.unpackb(raw, ext_hook=_array, raw=False)
      yield name, examples['pixels'], examples['label']
    except (zlib.error, ValueError, KeyError, TypeError, msgpack.UnpackException) as e:
      raise UserError(
        f'{path}, client {name}: the row is not pixels and label as FedJAX writes '
        f'them ({e}).'
      ) from e


def _array(code: int, data: bytes) -> np.ndarray:
  """An array as FedJAX packs it: extension 1, (shape, dtype, bytes)."""
  if code != 1:
    raise ValueError(f'extension {code} is not an array')
  shape, dtype, raw = msgpack.unpackb(data, raw=True)
  return np.frombuffer(raw, np.dtype(dtype.decode())).reshape(shape)


def _read_tff_sqlite(path: pathlib.Path, split: str) -> Iterator[tuple[str, Any, Any]]:
  # TensorFlow Datasets brings tf.train.Example without TensorFlow.
  from tensorflow_datasets.proto import tf_example_pb2

  def examples() -> Iterator[tuple[str, Any, Any]]:
    rows = _rows(
        path, 'examples',
        'SELECT client_id, serialized_example_proto FROM examples '
        'WHERE split_name = ? ORDER BY client_id, rowid', split,
    )  # fmt: skip
    for name, blob in rows:
      try:
        feature = tf_example_pb2.Example.FromString(blob).features.feature
      except Exception as e:  # The decoder's own kinds of error.
        raise UserError(f'{path}, client {name}: a row is damaged ({e}).') from e
      pixels = np.array(feature['pixels'].float_list.value, np.float32)
      label = feature['label'].int64_list.value
      if pixels.size != 784 or len(label) != 1:
        raise UserError(
          f'{path}, client {name}: a row of {pixels.size} pixels and {len(label)} '
          'labels; 784 and 1 are needed.'
        )
      yield name, pixels.reshape(28, 28), label[0]

  name, images, labels = None, [], []
  for client, image, label in examples():
    if client != name and name is not None:
      yield name, np.stack(images), np.array(labels)
      images, labels = [], []
    name = client
    images.append(image)
    labels.append(label)
  if name is not None:
    yield name, np.stack(images), np.array(labels)
