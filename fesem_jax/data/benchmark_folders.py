"""Folders that the generators of PFLlib and FL-bench write."""

import json
import pathlib
import zipfile

import numpy as np

from fesem_jax.data.partitions import listed_rows
from fesem_jax.data.partitions.rows import Rows
from fesem_jax.data.pool import Examples, Pool, cached_pool, channels_last
from fesem_jax.utils import array_checks, array_pickles
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import opened, reading

_SIDE = 28  # FL-bench keeps FEMNIST's images as rows of 784 pixels.


def load_pfllib(folder: pathlib.Path, task: str = '') -> Pool:
  """PFLlib's `train/0.npz`, `test/0.npz`, ...: a client per number.

  Each holds a pickled dict of x and y, of which only arrays are read. Images, which
  have their channels first, are moved to [N, H, W, C], or [N, H, W] if they are gray.
  Without `test/`, each client is split 80/20. Clients without training examples are
  left out. Raises a `UserError` that names the file at fault, or one that is missing.
  """
  train, test = (_clients(folder / split) for split in ('train', 'test'))
  classes, said = None, len(train)
  config = folder / 'config.json'
  if config.is_file():
    with opened(config) as file:
      told = json.loads(file.read())
      classes, said = int(told['num_classes']), int(told.get('num_clients', said))
  if said != len(train) or (test and test.keys() != train.keys()):
    raise UserError(
      f'{folder} has {len(train)} files of clients in train/ and {len(test)} in test/'
      + f', and config.json says {said} clients' * (said != len(train))
      + '; copy all of them, or generate them again.'
    )

  def read() -> tuple[dict[str, Examples], dict[str, Examples] | None]:
    def of(paths: dict[str, pathlib.Path]) -> dict[str, Examples]:
      read = {name: _client(path, classes) for name, path in paths.items()}
      return {name: held for name, held in read.items() if len(held[1])}

    return of(train), of(test) if test else None

  paths = [*train.values(), *test.values()]
  return cached_pool(folder, f'pfllib 1 {classes}', classes or 0, 1.0, read, paths)


def _clients(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Name -> file of each client of a split, named so that they sort by number."""
  with reading(folder):
    paths = [p for p in folder.glob('*.npz') if p.stem.isdecimal()]
  width = max((len(p.stem) for p in paths), default=0)
  return {f'client{p.stem:0>{width}}': p for p in paths}


def _client(path: pathlib.Path, classes: int | None) -> Examples:
  with reading(path):
    with zipfile.ZipFile(path) as archive:
      held = array_pickles.read_npy(archive.read('data.npy'), path)
    x, y = (np.asarray(held[name]) for name in ('x', 'y'))
    x = x.astype(np.float32)
    if x.ndim == 4 and x.shape[1] in (1, 3, 4) and min(x.shape[2:]) > 4:
      x = channels_last(x)
    return x, array_checks.labels(y, str(path), classes)


def load_fl_bench(folder: pathlib.Path, task: str = '') -> Pool:
  """FL-bench's `data.npy`, `targets.npy` and `partition.pkl`: a client per entry.

  Rows of 784 numbers become images [28, 28]. Clients without training rows and rows
  for validation are left out. Raises a `UserError` that names the file at fault.
  """
  partition = folder / 'partition.pkl'
  paths = [folder / 'data.npy', folder / 'targets.npy', partition]
  arrays = []
  for path in paths[:2]:
    with reading(path), path.open('rb') as file:
      arrays.append(np.load(file, allow_pickle=False))
  x, y = arrays[0], array_checks.labels(np.squeeze(arrays[1]), str(paths[1]), None)
  if x.ndim < 2 or x.dtype.kind not in 'iuf' or len(x) != len(y):
    raise UserError(
      f'{paths[0]}: {x.dtype} of shape {x.shape} for {len(y)} targets; generate both '
      'again, by one run.'
    )
  if x.shape[1:] == (_SIDE**2,):
    x = x.reshape(-1, _SIDE, _SIDE)
  x = x if x.dtype == np.uint8 else x.astype(np.float32)
  # FL-bench divides images beyond 1 by 255, too.
  pixels = x.dtype == np.uint8 or (x.ndim > 2 and x.max(initial=0) > 1)
  names, train, test = listed_rows.read(partition)
  width = len(str(len(train) - 1))
  numbered = [f'client{i:0{width}d}' for i in range(len(train))]
  rows, classes = np.concatenate(train), int(y.max(initial=0)) + 1
  pool = Pool(
    x[rows], y[rows], classes, 1 / 255 if pixels else 1.0,
    client=_owners(train), names=np.array(names or numbered),
  )  # fmt: skip
  if test is None:
    return pool
  rows = np.concatenate(test)
  return pool._replace(test_x=x[rows], test_y=y[rows], test_client=_owners(test))


def _owners(rows: Rows) -> np.ndarray:
  """The client of each listed row."""
  return np.repeat(np.arange(len(rows)), [len(own) for own in rows])
