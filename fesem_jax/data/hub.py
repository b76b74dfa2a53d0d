"""Image classification sets of the Hugging Face hub, by a column of clients."""

import pathlib
import socket
from typing import Any

import numpy as np

from fesem_jax.base import UserError
from fesem_jax.data import celeba, files
from fesem_jax.data.pool import Pool

_HOST = 'huggingface.co'


def load(
  name: str, data_dir: pathlib.Path, client_column: str = '', label_column: str = ''
) -> Pool:
  """A data set by its name on the hub.

  `data_dir/NAME` may hold a copy: Parquet files, or what `save_to_disk` writes.
  Otherwise it is downloaded.

  Args:
    name: 'owner/name'.
    data_dir: folder of local copies.
    client_column: names the client of each example; all splits are then pooled
      and each client is split 80/20. '' leaves the splits and has no clients.
    label_column: '' takes the only class label.

  Raises:
    UserError: if it is not to be had, or lacks a column.
  """
  try:
    import datasets
  except ImportError as e:
    raise UserError(
      'The Hugging Face hub needs the extra: pip install "fesem_jax[hub]".'
    ) from e
  files.inside(data_dir, name, pathlib.Path('--hub_name'))
  splits = _open(datasets, name, data_dir / name)
  if client_column:
    whole = datasets.concatenate_datasets(list(splits.values()))
    image, label = _columns(datasets, name, whole, client_column, label_column)
    x, y = _read(whole, image, label)
    names, client = np.unique(
      [str(c) for c in whole[client_column]], return_inverse=True
    )
    return Pool(
      x, y, _num_classes(whole, label, y), 1 / 255, client=client, names=names
    )
  if not {'train', 'test'} <= set(splits):
    raise UserError(
      f'{name} has the splits {", ".join(splits)}; without --hub_client_column, '
      'train and test are needed.'
    )
  image, label = _columns(datasets, name, splits['train'], '', label_column)
  x, y = _read(splits['train'], image, label)
  test_x, test_y = _read(splits['test'], image, label)
  classes = _num_classes(splits['train'], label, np.concatenate([y, test_y]))
  return Pool(x, y, classes, 1 / 255, test_x=test_x, test_y=test_y)


def _open(datasets: Any, name: str, folder: pathlib.Path) -> dict[str, Any]:
  """Split name -> data set, from the local copy or the hub."""
  if folder.is_dir():
    parquet = sorted(folder.rglob('*.parquet'))
    try:
      if parquet:
        # The hub names its files SPLIT-00000-of-00003.parquet.
        by_split: dict[str, list[str]] = {}
        for path in parquet:
          by_split.setdefault(path.name.split('-')[0], []).append(str(path))
        return dict(datasets.load_dataset('parquet', data_files=by_split))
      held = datasets.load_from_disk(str(folder))
    except Exception as e:  # pyarrow and datasets raise kinds of their own.
      raise UserError(f'{folder} cannot be read: {_first_line(e)}') from e
    return dict(held) if isinstance(held, datasets.DatasetDict) else {'train': held}
  try:
    socket.getaddrinfo(_HOST, 443)
  except OSError as e:
    raise UserError(
      f'{folder} does not exist and there is no network to download {name}. Fetch it '
      f'elsewhere: hf download {name} --repo-type dataset --local-dir '
      f'{folder}'
    ) from e
  try:
    return dict(datasets.load_dataset(name))
  except Exception as e:
    raise UserError(f'{name} cannot be downloaded: {_first_line(e)}') from e


def _columns(
  datasets: Any, name: str, data: Any, client_column: str, label_column: str
) -> tuple[str, str]:
  """Names of the image and the label column."""
  for flag, column in (('client', client_column), ('label', label_column)):
    if column and column not in data.features:
      raise UserError(
        f'--hub_{flag}_column={column} is not among the columns of {name}: '
        f'{", ".join(data.features)}.'
      )
  of_kind = lambda kind: [n for n, f in data.features.items() if isinstance(f, kind)]
  images = of_kind(datasets.Image)
  if len(images) != 1:
    raise UserError(f'{name} has {len(images)} columns of images; it needs one.')
  if not label_column:
    labels = of_kind(datasets.ClassLabel)
    if len(labels) != 1:
      raise UserError(
        f'{name} has {len(labels)} columns of class labels; choose one with '
        f'--hub_label_column: {", ".join(data.features)}.'
      )
    label_column = labels[0]
  return images[0], label_column


def _read(data: Any, image: str, label: str) -> tuple[np.ndarray, np.ndarray]:
  """Images [T, H, W(, C)] uint8, large ones brought to 84 by 84, and labels."""
  y = np.asarray(data[label]).astype(np.int32)
  first = data[0][image]
  convert = celeba.resize if min(first.size) > celeba.SIDE else np.asarray
  shape = convert(first).shape
  x = np.empty((len(data), *shape), np.uint8)
  for i, example in enumerate(data.select_columns([image])):
    picture = convert(example[image])
    if picture.shape != shape:
      raise UserError(f'Image {i} has shape {picture.shape}, the first one {shape}.')
    x[i] = picture
  return x, y


def _num_classes(data: Any, label: str, y: np.ndarray) -> int:
  return getattr(data.features[label], 'num_classes', int(y.max()) + 1)


def _first_line(e: Exception) -> str:
  return (str(e).splitlines() or [type(e).__name__])[0]
