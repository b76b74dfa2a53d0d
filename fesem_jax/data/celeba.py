"""CelebA by celebrity: LEAF's JSON of image names, or the original lists.

Label: Smiling. Images are brought to 84 by 84, as LEAF's model reads them.
"""

import concurrent.futures
import csv
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.data import cache, leaf
from fesem_jax.data.pool import Examples, Pool, cached_pool
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import reading

if TYPE_CHECKING:
  from PIL import Image

SIDE = 84
CLASSES = 2
ATTRIBUTE = 'Smiling'
MIN_IMAGES = 5  # LEAF leaves out celebrities with fewer.

_IMAGES = 'img_align_celeba'
_IDENTITIES, _ATTRIBUTES = 'identity_CelebA.txt', 'list_attr_celeba.txt'

Named = dict[str, tuple[list[str], np.ndarray]]  # Celebrity -> image names, labels.


def resize(image: 'Image.Image') -> np.ndarray:
  """The image as [84, 84, 3] uint8."""
  from PIL import Image

  return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert('RGB'))


def _read_image(path: pathlib.Path) -> np.ndarray:
  from PIL import Image

  with reading(f'Image {path}'), Image.open(path) as image:
    return resize(image)


def _images_folder(folder: pathlib.Path) -> pathlib.Path:
  for candidate in (folder / _IMAGES, folder / 'raw' / _IMAGES):
    if candidate.is_dir():
      deeper = candidate / _IMAGES  # As Kaggle's archive unpacks.
      return deeper if deeper.is_dir() else candidate
  raise UserError(f'{folder}: {_IMAGES} is missing')


def _decode(clients: Named, images: pathlib.Path):
  """The images of each celebrity, decoded by as many threads as there are cores."""
  decoded: dict[str, Examples] = {}
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for name, (wanted, labels) in clients.items():
      paths = [images / file for file in wanted]
      decoded[name] = np.stack(list(pool.map(_read_image, paths))), labels
  return decoded


def _key(name: str, sources: list[pathlib.Path], images: pathlib.Path) -> str:
  """Digest of the lists' contents and the images' names, sizes and times."""
  entries = sorted((e.name, e.stat()) for e in os.scandir(images))
  listing = [(image, *cache.state(stat)) for image, stat in entries]
  return cache.digest(sources, f'{name} {listing}')


def load_leaf(folder: pathlib.Path, users: str = '') -> Pool:
  """CelebA as LEAF's scripts leave it: a client per celebrity.

  `folder` holds train/ and test/ (or all_data/), and img_align_celeba/, also below
  raw/; `users` are those of `leaf.of_users`. Raises a `UserError` that names file and
  user if a file is damaged.
  """
  images = _images_folder(folder)
  train, test = leaf.find_splits(folder)

  def read() -> tuple[dict[str, Examples], dict[str, Examples] | None]:
    named = leaf.read_folder(folder, _names, CLASSES, users=users)

    def decoded(clients: dict[str, Examples]) -> dict[str, Examples]:
      return _decode({n: (list(x), y) for n, (x, y) in clients.items()}, images)

    return decoded(named[0]), None if named[1] is None else decoded(named[1])

  sources, also = [*train, *(test or [])], ' users' * bool(users)
  pool = cached_pool(
    folder,
    'celeba leaf' + also,
    CLASSES,
    1 / 255,
    read,
    [*sources, *images.iterdir()],
    lambda: _key('celeba leaf 1' + also, sources, images),
  )
  return leaf.of_users(pool, folder, users)


def _names(x: list[Any], where: str) -> np.ndarray:
  return np.array(x, object)


def load_raw(folder: pathlib.Path) -> Pool:
  """CelebA as it is published, without LEAF's scripts.

  `folder` holds identity_CelebA.txt, list_attr_celeba.txt and img_align_celeba/, or
  these lists as .csv and the images one folder deeper, as mirrors have them.
  Celebrities with fewer than 5 images are left out; the others are split 80/20. Raises
  a `UserError` that names file and line or image if one is damaged.
  """
  images = _images_folder(folder)
  sources = [_list_file(folder, _IDENTITIES), _list_file(folder, _ATTRIBUTES)]

  wanted = _celebrities(sources[0])
  smiling = _attribute(sources[1])

  def read() -> tuple[dict[str, Examples], None]:
    clients: Named = {}
    for name, theirs in wanted.items():
      if len(theirs) < MIN_IMAGES:
        continue
      labels = np.array([smiling[image] for image in theirs], np.int32)
      clients[name] = theirs, labels
    return _decode(clients, images), None

  return cached_pool(
    folder,
    'celeba raw',
    CLASSES,
    1 / 255,
    read,
    [*sources, *images.iterdir()],
    lambda: _key('celeba raw 1', sources, images),
  )


def _celebrities(path: pathlib.Path) -> dict[str, list[str]]:
  """The names of the images of each celebrity."""
  wanted: dict[str, list[str]] = {}
  for fields in _lines(path):
    wanted.setdefault(fields[1], []).append(fields[0])
  return wanted


def _list_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """A list of the publishers, or the same list as .csv where only that is there."""
  path = folder / name
  of_mirror = path.with_suffix('.csv')
  if not path.is_file() and not of_mirror.is_file():
    raise UserError(
      f'Neither {path} nor {of_mirror.name} exists; CelebA needs identity_CelebA.txt '
      '(from its publishers; Kaggle leaves it out) and list_attr_celeba.txt or .csv.'
    )
  return path if path.is_file() else of_mirror


def _lines(path: pathlib.Path) -> list[list[str]]:
  """The fields of the lines that are not empty, without headers of .csv."""
  text = path.read_text(encoding='utf-8-sig')
  if path.suffix == '.csv':
    with reading(path):
      split = list(csv.reader(text.splitlines()))
    if split and split[0][:1] == ['image_id'] and ATTRIBUTE not in split[0]:
      del split[0]
  else:
    split = [line.split() for line in text.splitlines()]
  return [fields for fields in split if fields]


def _attribute(path: pathlib.Path) -> dict[str, int]:
  """Image name -> 1 if the person smiles, else 0."""
  lines = _lines(path)
  comma = path.suffix == '.csv'  # Which has no count, and names its first column.
  names = lines[1 - comma]
  column = names.index(ATTRIBUTE) + (not comma)
  values = {}
  for fields in lines[2 - comma :]:
    values[fields[0]] = int(fields[column] == '1')
  return values
