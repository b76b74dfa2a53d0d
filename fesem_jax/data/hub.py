"""Image classification sets of the Hugging Face hub, by a column of clients."""

import io
import pathlib
import socket
from typing import Any

import numpy as np

from fesem_jax.data import celeba
from fesem_jax.data.pool import Pool
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.safe_files import check_pixels, first_line, inside, reading

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
      and each client is split 80/20. '' keeps the splits; there are no clients then.
    label_column: '' takes the only column of class labels.

  Raises:
    UserError: if it can be neither read nor downloaded, or lacks a column.
  """
  try:
    import datasets
  except ImportError as e:
    raise UserError(
      'The Hugging Face hub needs the extra: pip install "fesem_jax[hub]".'
    ) from e
  inside(data_dir, name, '`hub_name`')
  splits = _open(datasets, name, data_dir / name)
  if client_column:
    whole = datasets.concatenate_datasets(list(splits.values()))
    image, label = _columns(datasets, name, whole, client_column, label_column)
    x, y = _read(whole, image, label, name)
    clients = list(whole[client_column])
    if any(c is None for c in clients):
      raise UserError(f'{name}: example {clients.index(None)} has no {client_column}.')
    names, client = np.unique([str(c) for c in clients], return_inverse=True)
    return Pool(
      x, y, _num_classes(whole, label, y), 1 / 255, client=client, names=names
    )
  if not {'train', 'test'} <= set(splits):
    raise UserError(
      f'{name} has the splits {", ".join(splits)}; without `hub_client_column`, '
      'train and test are needed.'
    )
  image, label = _columns(datasets, name, splits['train'], '', label_column)
  x, y = _read(splits['train'], image, label, name)
  test_x, test_y = _read(splits['test'], image, label, name)
  classes = _num_classes(splits['train'], label, np.concatenate([y, test_y]))
  return Pool(x, y, classes, 1 / 255, test_x=test_x, test_y=test_y)


def _open(datasets: Any, name: str, folder: pathlib.Path) -> dict[str, Any]:
  """Split name -> data set, from the local copy or the hub."""
  with reading(folder):
    there = folder.is_dir()
  if there:
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
      raise UserError(f'{folder} cannot be read: {first_line(e)}') from e
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
    raise UserError(f'{name} cannot be downloaded: {first_line(e)}') from e


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
  data: Any, image: str, label: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
  """Images [T, H, W(, C)] uint8, large ones brought to 84 by 84, and labels."""
  where = f'{name} of the hub'
  classes = getattr(data.features[label], 'num_classes', None)
  y = array_checks.labels(data[label], where, classes)
  images: list[np.ndarray] = []
  encoded = data.cast_column(image, data.features[image].__class__(decode=False))
  for i, raw in enumerate(encoded[image]):
    with reading(f'{where}, image {i},'):
      picture = _decode(raw, f'{where}, image {i}')
    if images and picture.shape != images[0].shape:
      raise UserError(
        f'{where}: image {i} has shape {picture.shape}, the first one '
        f'{images[0].shape}.'
      )
    images.append(picture)
  if not images:
    raise UserError(f'{where} holds no examples.')
  return np.stack(images), y


def _decode(raw: dict[str, Any], where: str) -> np.ndarray:
  """An image from its bytes; a path is not followed."""
  from PIL import Image

  if not raw or not raw['bytes']:
    raise UserError(f'{where} is a path to a file elsewhere, which is not followed.')
  picture: Image.Image = Image.open(io.BytesIO(raw['bytes']))
  check_pixels(picture.size, where)
  if picture.mode not in ('1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK'):
    raise UserError(f'{where} has mode {picture.mode}; 8-bit images are needed.')
  gray = picture.mode in ('1', 'L', 'LA')
  picture = picture.convert('L' if gray else 'RGB')
  if min(picture.size) > celeba.SIDE:
    side = (celeba.SIDE, celeba.SIDE)
    picture = picture.resize(side, Image.Resampling.BICUBIC)
  return np.asarray(picture)


def _num_classes(data: Any, label: str, y: np.ndarray) -> int:
  return getattr(data.features[label], 'num_classes', int(y.max()) + 1)
