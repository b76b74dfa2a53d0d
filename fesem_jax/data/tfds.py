"""TensorFlow Datasets, read through array_record without TensorFlow."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from fesem_jax.data import mnist
from fesem_jax.data.pool import Pool, warn_of_other_splits
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.safe_files import first_line, reading

# TFDS announces 37 classes of EMNIST's letters; the labels are 1 to 26.
_LETTERS = mnist.EMNIST_SPLITS['letters']
_HOST = 'storage.googleapis.com'


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
    _prepare(builder, name)
  splits = builder.info.splits
  if 'train' not in splits or 'test' not in splits:
    raise UserError(
      f'{name} of TensorFlow Datasets has the splits {", ".join(splits)}; train and '
      'test are needed.'
    )
  warn_of_other_splits(f'{name} of TensorFlow Datasets', splits)
  features = builder.info.features
  image, label = (dict(features).get(k) for k in ('image', label_feature))
  if not isinstance(image, tfds.features.Image) or not isinstance(
    label, tfds.features.ClassLabel
  ):
    raise UserError(
      f'{name} of TensorFlow Datasets has no image with a class label; '
      'choose another data set.'
    )
  if None in image.shape or image.np_dtype != np.uint8:
    raise UserError(
      f'{name} of TensorFlow Datasets has images of shape {image.shape} and type '
      f'{np.dtype(image.np_dtype)}; 8-bit images of one size are needed.'
    )
  classes = label.num_classes
  config = builder.builder_config.name if builder.builder_config else ''
  letters = (builder.name, config) == ('emnist', 'letters')
  first, classes = _LETTERS if letters else (0, classes)
  read = {}
  for split in ('train', 'test'):
    x, y = _read(builder, name, split, label_feature)
    if len(y) and not first <= y.min() <= y.max() < first + classes:
      raise UserError(
        f'{name} of TensorFlow Datasets has labels {y.min()} to {y.max()}, not '
        f'{first} to {first + classes - 1}; prepare it again.'
      )
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


def _prepare(builder: Any, name: str) -> None:
  """Downloads and prepares the data set, or says how to do so elsewhere."""
  elsewhere = (
    f'Prepare it on another machine with: tfds build {name} '
    f'--file_format=array_record --data_dir=DIR/tfds, and use `data_dir=DIR`.'
  )
  try:
    socket.getaddrinfo(_HOST, 443)
  except OSError as e:
    raise UserError(
      f'{name} is not prepared in {builder.data_dir} and there is no network to '
      f'download it. {elsewhere}'
    ) from e
  try:
    builder.download_and_prepare()
  except Exception as e:  # Network, disk, checksums, TensorFlow missing: all kinds.
    raise UserError(
      f'TensorFlow Datasets cannot prepare {name}: {type(e).__name__}: '
      f'{first_line(e)}. Some data sets need TensorFlow for this step: pip '
      f'install tensorflow. {elsewhere}'
    ) from e


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
