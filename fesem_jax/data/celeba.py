"""CelebA by celebrity: LEAF's JSON of names of images, or the publishers' lists.

The label is Smiling. Images are brought to 84 by 84, as LEAF's model reads them.
"""

import concurrent.futures
import pathlib
import re

import numpy as np

from fesem_jax.data import leaf
from fesem_jax.data.reading import Arrays, Clients, Request, find, of_clients
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import opened, reading

_SIDE = 84
_ATTRIBUTE = 'Smiling'
_MIN_IMAGES = 5  # LEAF leaves out celebrities with fewer.


def celeba(request: Request) -> Arrays:
  """CelebA by celebrity, smiling or not, from leaf_celeba/ or the lists of celeba/."""
  folder = find(request, 'leaf_celeba', 'celeba')
  images = sorted(folder.glob('**/img_align_celeba'))
  check(images, f'{folder}: has no img_align_celeba/')
  if folder.name == 'leaf_celeba':
    arrays = leaf.read_folder(folder, lambda names: np.array(names, object))
  else:
    arrays = _of_lists(folder)
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


def _of_lists(folder: pathlib.Path) -> Arrays:
  """Names of images and labels of celebrities with enough images."""
  names: dict[str, list[str]] = {}
  for image, celebrity, *_ in _lines(folder, 'identity_CelebA'):
    if image != 'image_id':  # The header of a mirror.
      names.setdefault(celebrity, []).append(image)
  lines = _lines(folder, 'list_attr_celeba')
  header = next((line for line in lines if _ATTRIBUTE in line), [])
  check(header, f'{folder}: list_attr_celeba has no column {_ATTRIBUTE}')
  column = header.index(_ATTRIBUTE) + (header[0] != 'image_id')
  smiles = {line[0]: line[column] == '1' for line in lines if len(line) > column}
  clients: Clients = {}
  for celebrity, images in names.items():
    if len(images) >= _MIN_IMAGES:
      with reading(f'{folder}, celebrity {celebrity}'):
        y = np.array([smiles[image] for image in images], int)
      clients[celebrity] = np.array(images, object), y
  return of_clients(clients)


def _lines(folder: pathlib.Path, name: str) -> list[list[str]]:
  """The fields of each line of NAME.txt or, of a mirror, NAME.csv."""
  path = folder / f'{name}.txt'
  with opened(path if path.exists() else path.with_suffix('.csv')) as file:
    text = file.read().decode('utf-8-sig')
  return [re.split(r'[,\s]+', line.strip()) for line in text.splitlines() if line]
