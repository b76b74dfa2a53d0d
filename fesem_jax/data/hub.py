"""Image classification sets of the Hugging Face hub, by a column of clients."""

import pathlib
from typing import Any

import numpy as np

from fesem_jax.data import class_labels, columns, pictures
from fesem_jax.data.pool import Pool
from fesem_jax.data.table_files import check_classes
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.safe_files import reading


def load(
  name: str,
  data_dir: pathlib.Path,
  client_column: str = '',
  label_column: str = '',
  side: int = 0,
  config: str = '',
) -> Pool:
  """A data set by its name on the hub.

  `data_dir/NAME` may hold a copy: Parquet files, or what `save_to_disk` writes.
  Otherwise it is downloaded.

  Args:
    name: 'owner/name'.
    data_dir: folder of local copies.
    client_column: names the client of each example; all splits are then pooled
      and each client is split 80/20. '' keeps the splits; there are no clients then. If
      train is the only split, the clients that a partition makes of it are split 80/20.
    label_column: '' takes the only column of class labels. Labels may also be names,
      whose classes are in alphabetical order.
    side: of all images; 0 resizes images of which both sides exceed 84 to 84.
    config: which of several configurations of the data set; a folder of a local copy.

  Raises:
    UserError: if it can be neither read nor downloaded, or lacks a column.
  """
  import datasets

  splits = _open(datasets, name, data_dir / name, config)
  if client_column:
    with reading(f'{name} of the hub'):  # Splits may have other columns each.
      whole = datasets.concatenate_datasets(list(splits.values()))
    image, label = _columns(datasets, name, whole, client_column, label_column)
    x, y, classes, class_names = _read(whole, image, label, name, side)
    clients = np.empty(len(whole), object)  # Whole numbers stay so beside None.
    clients[:] = list(whole[client_column])
    distinct, _, client = columns.numbered(
      clients, f'{name}: {client_column}', 'remove such rows, or give each a client'
    )
    names = distinct.astype(str)
    return Pool(
      x, y, classes, 1 / 255, client=client, names=names, class_names=class_names
    )
  parts = [splits[part] for part in ('train', 'test') if part in splits]
  image, label = _columns(datasets, name, parts[0], '', label_column)
  with reading(f'{name} of the hub'):  # Splits may have other columns each.
    whole = datasets.concatenate_datasets(parts)
  x, y, classes, class_names = _read(whole, image, label, name, side)
  pool = Pool(x, y, classes, 1 / 255, class_names=class_names)
  if len(parts) == 1:
    return pool
  count = len(parts[0])
  return pool._replace(x=x[:count], y=y[:count], test_x=x[count:], test_y=y[count:])


def _open(
  datasets: Any, name: str, folder: pathlib.Path, config: str
) -> dict[str, Any]:
  """Split name -> data set, from the local copy or the hub."""
  with reading(folder):
    if not folder.is_dir():
      return dict(datasets.load_dataset(name, config or None))
  if parquet := list((folder / config).rglob('*.parquet')):
    check_classes(parquet)
    return dict(datasets.load_dataset('parquet', data_dir=str(folder / config)))
  saved = datasets.load_from_disk(str(folder / config))
  return dict(saved) if isinstance(saved, datasets.DatasetDict) else {'train': saved}


def _columns(
  datasets: Any, name: str, data: Any, client_column: str, label_column: str
) -> tuple[str, str]:
  """Names of the image and the label column."""
  for kind, column in (('client', client_column), ('label', label_column)):
    if column and column not in data.features:
      raise UserError(
        f'{argument(f"hub_{kind}_column", column)} is not among the columns of {name}: '
        f'{", ".join(data.features)}.'
      )

  def of_kind(kind):
    return [n for n, f in data.features.items() if isinstance(f, kind)]

  images = of_kind(datasets.Image)
  if len(images) != 1:
    raise UserError(f'{name} has {len(images)} columns of images; it needs one.')
  if not label_column:
    labels = of_kind(datasets.ClassLabel)
    if len(labels) != 1:
      raise UserError(
        f'{name} has {len(labels)} columns of class labels; choose one with '
        f'`hub_label_column`: {", ".join(data.features)}.'
      )
    label_column = labels[0]
  return images[0], label_column


def _read(
  data: Any, image: str, label: str, name: str, side: int
) -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...] | None]:
  """Images [T, H, W(, C)] uint8, labels, the number of classes and their names.

  Gray images become colored ones if any is colored; for `side`, see `load`.
  """
  where = f'{name} of the hub'
  known = getattr(data.features[label], 'num_classes', None)
  y, classes, names = class_labels.as_numbers(list(data[label]), where, known)
  if known is not None:  # The hub's names, which may also belong to no example.
    names = tuple(data.features[label].names)
  y = array_checks.labels(y, where, classes)
  images: list[np.ndarray] = []
  encoded = data.cast_column(image, data.features[image].__class__(decode=False))
  for i, raw in enumerate(encoded[image]):
    with reading(f'{where}, image {i},'):
      picture = _decode(raw, f'{where}, image {i}', side)
    images.append(picture)
  x = pictures.stacked(images, where, 'hub_image_side')
  if not classes:
    classes = int(y.max()) + 1
  return x, y, classes, names


def _decode(raw: dict[str, Any], where: str, side: int) -> np.ndarray:
  """An image from its bytes; a path is not followed."""
  if not raw or not raw['bytes']:
    raise UserError(
      f'{where} is a path to a file elsewhere, which is not followed; '
      'save the data set with the images inside, by `to_parquet`.'
    )
  return pictures.decode(raw['bytes'], where, side)
