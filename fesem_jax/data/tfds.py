"""TensorFlow Datasets, read through array_record without TensorFlow."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from fesem_jax.data import mnist
from fesem_jax.data.pool import Pool
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import argument, check
from fesem_jax.utils.safe_files import reading

# TFDS announces 37 classes of EMNIST's letters; the labels are 1 to 26.
_LETTERS = mnist.EMNIST_SPLITS['letters']


def load(name: str, data_dir: pathlib.Path, label_feature: str = 'label') -> Pool:
  """An image classification set with the splits train and test.

  Args:
    name: as TFDS writes it, e.g. 'fashion_mnist' or 'emnist/balanced'.
    data_dir: folder that holds `tfds/`, where prepared data sets lie; without
      it, TFDS's own default. A data set that is not there is downloaded.
    label_feature: name of the class labels among its features.

  Raises:
    UserError: if the name is unknown, the data set can be neither read nor
      downloaded, or it has no images and labels.
  """
  import tensorflow_datasets as tfds

  folder = data_dir / 'tfds'
  where = str(folder) if folder.is_dir() else None
  with reading(argument('tfds_name', name)), _quiet():
    builder = tfds.builder(name, data_dir=where, file_format='array_record')
    prepared = builder.is_prepared()
  if not prepared:
    socket.getaddrinfo('storage.googleapis.com', 443)  # Fails at once if offline.
    builder.download_and_prepare()
  features = builder.info.features
  label = dict(features)[label_feature]
  classes = label.num_classes
  config = builder.builder_config.name if builder.builder_config else ''
  letters = (builder.name, config) == ('emnist', 'letters')
  first, classes = _LETTERS if letters else (0, classes)
  read = {}
  for split in ('train', 'test'):
    x, y = _read(builder, name, split, label_feature)
    inside = (y >= first) & (y < first + classes)
    check(inside.all(), f'{name}: labels must be {first}..{first + classes - 1}')
    read[split] = x, y - np.int32(first)
  (x, y), (test_x, test_y) = read['train'], read['test']
  return Pool(x, y, classes, scale=1 / 255, test_x=test_x, test_y=test_y)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Suppresses warnings, such as one about a folder that is not written yet."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


def _read(
  builder: Any, name: str, split: str, label: str
) -> tuple[np.ndarray, np.ndarray]:
  features = builder.info.features
  with reading(f'{builder.data_dir}, split {split},'):
    source = builder.as_data_source(split=split)
    x = np.empty((len(source), *features['image'].shape), np.uint8)
    y = np.empty(len(source), np.int64)
    for i, example in enumerate(source):
      x[i], y[i] = example['image'], example[label]
  y = array_checks.labels(
    y, f'{name} of TensorFlow Datasets', features[label].num_classes
  )
  if x.shape[-1] == 1:
    x = x[..., 0]
  if builder.name == 'emnist':  # Not `name`, which may have capitals and a version.
    x = np.ascontiguousarray(x.swapaxes(1, 2))  # EMNIST comes transposed.
  return x, y
