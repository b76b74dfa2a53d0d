"""Data sets of scikit-learn, TensorFlow Datasets and the Hugging Face hub."""

import importlib.metadata
import pathlib
import socket
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from fesem_jax.data.images import EMNIST_SPLITS
from fesem_jax.data.reading import Arrays, Request, both_splits
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Range, checked
from fesem_jax.utils.safe_files import reading

Side = Annotated[int, Range(0, 1024)]


def _table_of_sklearn(name: str, **options: Any) -> np.ndarray:
  # As `sklearn.datasets` does, which takes a second to import.
  package = importlib.metadata.distribution('scikit-learn')
  path = package.locate_file(f'sklearn/datasets/data/{name}.csv.gz')
  return np.loadtxt(str(path), **options)


def digits(request: Request) -> Arrays:
  """scikit-learn's 1,797 handwritten digits, [8, 8] of 0..16; nothing to download."""
  rows = _table_of_sklearn('digits', dtype=np.uint8, delimiter=',')
  x, y = rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
  return {'x': x, 'y': y, 'num_classes': 10, 'scale': 1 / 16}


def diabetes(request: Request) -> Arrays:
  """scikit-learn's 442 patients, ten features, a regression; nothing to download.

  Features and the progression after a year are standardized over all patients (Efron et
  al., "Least Angle Regression", 2004).
  """
  tables = [_table_of_sklearn(f'diabetes_{name}') for name in ('data_raw', 'target')]
  x, y = ((a - a.mean(axis=0)) / a.std(axis=0) for a in tables)
  return {'x': x, 'y': y, 'task': REGRESSION.name}


def tfds(request: Request, name: str, label: str = 'label') -> Arrays:
  """Images of TensorFlow Datasets, e.g. emnist/letters, from tfds/ or downloaded."""
  import tensorflow_datasets

  folder = request.data_dir / 'tfds'
  where = str(folder) if folder.is_dir() else None
  form = 'array_record'
  with reading(f'tfds({name})'):
    builder = tensorflow_datasets.builder(name, data_dir=where, file_format=form)
    if not builder.is_prepared():
      socket.getaddrinfo('storage.googleapis.com', 443)  # Fails at once if offline.
      builder.download_and_prepare()
  splits = []
  for split in ('train', 'test'):
    with reading(f'{builder.data_dir}, split {split},'):
      source = builder.as_data_source(split=split)
      x = np.empty((len(source), *builder.info.features['image'].shape), np.uint8)
      y = np.empty(len(source), int)
      for i, example in enumerate(source):
        x[i], y[i] = example['image'], example[label]
      splits.append({'x': x[..., 0] if x.shape[-1] == 1 else x, 'y': y})
  arrays = both_splits(*splits)
  arrays['num_classes'] = builder.info.features[label].num_classes
  if builder.name == 'emnist':  # Transposed, and the labels of letters are 1 to 26.
    first, arrays['num_classes'] = EMNIST_SPLITS[builder.builder_config.name]
    arrays['x'], arrays['y'] = arrays['x'].swapaxes(1, 2), arrays['y'] - first
  return arrays


@checked
def hub(
  request: Request,
  name: str,
  image: str = '',
  label: str = '',
  client: str = '',
  side: Side = 0,
  config: str = '',
) -> Arrays:
  """Images of the Hugging Face hub, downloaded or from Parquet files in NAME/.

  `image`, `label` and `client` are columns; by default, the only ones of images and of
  class labels, and none. `side` resizes images to RGB of one size. With clients, splits
  are joined. `config` is a configuration; of a copy, a folder.
  """
  import datasets

  folder = request.data_dir / name / config
  with reading(f'hub({name})'):
    if not folder.is_dir():
      splits = datasets.load_dataset(name, config or None)
    else:
      splits = datasets.load_dataset('parquet', data_dir=str(folder))
    return _split_arrays(splits, image, label, client, side)


def _split_arrays(
  splits: Mapping[str, Any], image: str, label: str, client: str, side: int
) -> Arrays:
  import datasets

  names = list(splits) if client else [s for s in ('train', 'test') if s in splits]
  features = splits[names[0]].features

  def only(kind: type) -> str:
    columns = [column for column, f in features.items() if isinstance(f, kind)]
    check(len(columns) == 1, f'{kind.__name__} columns: are {columns}; choose one')
    return columns[0]

  image, label = image or only(datasets.Image), label or only(datasets.ClassLabel)
  parts = []
  for rows in (splits[name] for name in names):
    images = [_pixels(row, side) for row in rows[image]]
    shapes = sorted({x.shape for x in images})
    check(len(shapes) < 2, f'images: have shapes {shapes[:2]}; resize by side=64')
    columns = {'y': label, 'client': client} if client else {'y': label}
    part = {role: np.array(list(rows[column])) for role, column in columns.items()}
    parts.append({'x': np.stack(images)} | part)
  arrays = {role: np.concatenate([part[role] for part in parts]) for role in parts[0]}
  if len(parts) == 2 and not client:
    arrays = both_splits(*parts)
  return arrays | {'class_names': getattr(features[label], 'names', None)}


def _pixels(image: Any, side: int) -> np.ndarray:
  image = image if image.mode == 'L' and not side else image.convert('RGB')
  return np.asarray(image.resize((side, side)) if side else image)


@checked
def images(
  request: Request,
  folder: str,
  side: Side = 0,
  parents: Literal['', 'client', 'cluster'] = '',
) -> Arrays:
  """Images in CLASS/*.png, or in CLIENT/CLASS/ or CLUSTER/CLASS/ as `parents` says.

  Folders train/ and test/ may be above or below those of clients. `side` resizes all
  images to RGB of one size.
  """
  import datasets

  with reading(f'images({folder})'):
    names = [s for s in ('train', 'test') if any(pathlib.Path(folder).rglob(s))]
    # Patterns, as the library takes a class called dev or test_x for a split.
    patterns = {name: f'{folder}/**/{name}/**' for name in names}
    patterns = patterns or {'train': f'{folder}/**'}
    splits = datasets.load_dataset('imagefolder', data_files=patterns)
    arrays = _split_arrays(splits, 'image', 'label', '', side)
    if parents:
      arrays[parents] = [
        [part for part in pathlib.Path(file['path']).parts if part not in names][-3]
        for split in splits.values()
        for file in split.cast_column('image', datasets.Image(decode=False))['image']
      ]
  return arrays
