"""LEAF's data (Caldas et al. 2018): FEMNIST, CelebA, and any in its JSON layout."""

import codecs
import concurrent.futures
import pathlib
import string
from collections.abc import Callable
from typing import Any, Literal

import ijson
import numpy as np

from fesem_jax.data import tff
from fesem_jax.data.reading import (
  Arrays,
  Clients,
  Request,
  both_splits,
  find,
  join_clients,
  to_bytes,
)
from fesem_jax.utils.errors import check, warn_once
from fesem_jax.utils.ranges import checked
from fesem_jax.utils.safe_files import opened, reading

Convert = Callable[[list[Any]], np.ndarray]  # Of x or y of a user, as parsed.

_SIDE = 84  # Of CelebA's images, as LEAF's model reads them.
_ATTRIBUTE = 'Smiling'
_MIN_IMAGES = 5  # LEAF leaves out celebrities with fewer.
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def read_folder(
  folder: pathlib.Path, features: Convert = np.array, targets: Convert = np.array
) -> Arrays:
  """Examples of each user of a folder; splits of different users are joined."""

  def read(part: str) -> Clients:
    return _users(sorted((folder / part).glob('[!.]*.json*')), features, targets)

  train, test = read('train'), read('test')
  if not (train and test):
    both = read('all_data')
    check(both, f'{folder}: has no train/*.json and test/*.json')
    return join_clients(both)
  if train.keys() & test.keys():
    return both_splits(join_clients(train), join_clients(test))
  warn_once(f'{folder}: train/ and test/ have other users; each is split 80/20')
  return join_clients(train | test)


def _users(paths: list[pathlib.Path], features: Convert, targets: Convert) -> Clients:
  clients: Clients = {}
  for path in paths:
    with opened(path) as file:
      file.seek(3 * (file.read(3) == codecs.BOM_UTF8))
      items = ijson.kvitems(file, 'user_data', use_float=True, buf_size=2**20)
      for user, block in items:
        with reading(f'{path}, user {user}'):
          check(user not in clients, f'{path}: user {user} is in two files')
          x, y = block['x'], block['y']
          check(len(x) == len(y), f'{path}: user {user} has {len(x)} x and {len(y)} y')
          if x:
            clients[user] = features(x), targets(y)
  return clients


def leaf(request: Request, folder: str) -> Arrays:
  """Any data of numbers in LEAF's layout; a client per user."""
  return read_folder(pathlib.Path(folder))


@checked
def femnist(
  request: Request, background: Literal['white', 'black'] = 'white'
) -> Arrays:
  """FEMNIST by writer, from leaf_femnist/ or tff_femnist/."""
  folder = find(request, 'leaf_femnist', 'tff_femnist')
  if folder.name == 'leaf_femnist':
    arrays = read_folder(folder, lambda x: to_bytes(np.array(x)).reshape(-1, 28, 28))
  else:
    arrays = tff.fed_emnist(folder)
  if background == 'black':
    arrays['x'] = 255 - arrays['x']
  return arrays | {'class_names': tuple(_CHARACTERS)}


def celeba(request: Request) -> Arrays:
  """CelebA by celebrity, smiling or not, from leaf_celeba/ or the lists of celeba/."""
  folder = find(request, 'leaf_celeba', 'celeba')
  images = sorted(folder.glob('**/img_align_celeba'))
  check(images, f'{folder}: has no img_align_celeba/')
  if folder.name == 'leaf_celeba':
    arrays = read_folder(folder, lambda names: np.array(names, object))
  else:
    with reading(folder / 'list_attr_celeba'):
      arrays = _array_lists(folder)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    # The last folder, as Kaggle's archive has one inside of another.
    paths = [images[-1] / name for name in arrays['x']]
    x = np.stack(list(pool.map(_read_image, paths)))
  return arrays | {'x': x}


def _read_image(path: pathlib.Path) -> np.ndarray:
  from PIL import Image

  with reading(path), Image.open(path) as image:
    small = image.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return np.asarray(small.convert('RGB'))


def _array_lists(folder: pathlib.Path) -> Arrays:
  """Names of images and labels of celebrities with enough images."""
  client = _list(folder, 'identity_CelebA', header=None, index_col=0).iloc[:, 0]
  client = client.astype(str).sort_values(kind='stable')
  client = client[client.groupby(client).transform('size') >= _MIN_IMAGES]
  smiles = _list(folder, 'list_attr_celeba', skiprows=1)[_ATTRIBUTE]
  y = smiles.loc[client.index].to_numpy() == 1
  return {'x': client.index, 'y': y.astype(int), 'client': client.to_numpy()}


def _list(folder: pathlib.Path, name: str, **options: Any) -> Any:
  """NAME.txt or, of a mirror, NAME.csv, by image."""
  import pandas  # Slow to import.

  path = folder / f'{name}.txt'
  with reading(path):
    if path.exists():
      return pandas.read_csv(path, sep=r'\s+', **options)
    return pandas.read_csv(path.with_suffix('.csv'), index_col=0)
