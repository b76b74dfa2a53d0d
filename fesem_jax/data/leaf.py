"""LEAF's JSON layout: a folder of train/*.json and test/*.json, or all_data/*.json.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Every file holds
`user_data: {user: {x, y}}`. Files are parsed one user at a time, since the full FEMNIST
is several GB of text.
"""

import codecs
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
  of_clients,
  to_bytes,
)
from fesem_jax.utils.errors import check
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.ranges import checked
from fesem_jax.utils.safe_files import opened, reading

Convert = Callable[[list[Any]], np.ndarray]  # Of x or y of a user, as parsed.

_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def _features(x: list[Any]) -> np.ndarray:
  return np.array(x, np.float32)


def _images(x: list[Any]) -> np.ndarray:
  return to_bytes(np.array(x)).reshape(len(x), 28, 28)


def read_folder(
  folder: pathlib.Path, features: Convert = _features, targets: Convert = np.array
) -> Arrays:
  """Examples of each user of a folder in LEAF's layout.

  If the splits have other users each, as `preprocess.sh -t user` makes them, all users
  are returned without a split.
  """
  paths = {
    part: sorted((folder / part).glob('[!.]*.json*'))
    for part in ('train', 'test', 'all_data')
  }
  if not (paths['train'] and paths['test']):
    check(paths['all_data'], f'{folder}: has no train/*.json and test/*.json')
    return of_clients(_users(paths['all_data'], features, targets))
  train, test = (_users(paths[part], features, targets) for part in ('train', 'test'))
  if train.keys() & test.keys():
    return both_splits(of_clients(train), of_clients(test))
  warn_once(f'{folder}: train/ and test/ have other users; each is split 80/20')
  return of_clients(train | test)


def _users(paths: list[pathlib.Path], features: Convert, targets: Convert) -> Clients:
  """Examples of each user that has some."""
  clients: Clients = {}
  for path in paths:
    with opened(path) as file:
      file.seek(3 * (file.read(3) == codecs.BOM_UTF8))
      for user, block in ijson.kvitems(
        file, 'user_data', use_float=True, buf_size=2**20
      ):
        with reading(f'{path}, user {user}'):
          check(user not in clients, f'{path}: user {user} is in two files')
          x, y = block['x'], block['y']
          check(len(x) == len(y), f'{path}: user {user} has {len(x)} x and {len(y)} y')
          if x:
            clients[user] = features(x), targets(y)
  check(clients, f'{paths[0].parent}: no user has examples')
  return clients


def leaf(request: Request, folder: str) -> Arrays:
  """Any data of numbers in LEAF's layout; a client per user."""
  return read_folder(pathlib.Path(folder))


@checked
def femnist(
  request: Request,
  digits: bool = False,
  background: Literal['white', 'black'] = 'white',
) -> Arrays:
  """FEMNIST by writer, from leaf_femnist/ or tff_femnist/; digits=True: of TFF."""
  folder = find(request, *['leaf_femnist'] * (not digits), 'tff_femnist')
  if folder.name == 'leaf_femnist':
    arrays = read_folder(folder, _images) | {'num_classes': 62}
  else:
    arrays = tff.fed_emnist(folder, digits)
  if background == 'black':
    arrays['x'] = 255 - arrays['x']
  return arrays | {'class_names': tuple(_CHARACTERS[: arrays['num_classes']])}
