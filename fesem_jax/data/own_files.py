"""Files of own data: .npz, tables, PFLlib's folders, and folders that were saved."""

import dataclasses
import inspect
import json
import pathlib
import zipfile
from typing import Any

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.pool import Pool, from_arrays, from_frame
from fesem_jax.data.reading import Arrays, Request, both_splits
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npy, read_npz, reading

_VALUES = 'pool.json'  # Fields of a saved pool that are no arrays.


def npz(request: Request, file: str) -> Arrays:
  """Arrays called as the arguments of `fj.data.from_arrays`: x, y, client, split."""
  arrays = read_npz(pathlib.Path(file))
  unknown = arrays.keys() - inspect.signature(from_arrays).parameters.keys()
  check(not unknown, f'{file}: unknown arrays {sorted(unknown)}; see data.from_arrays')
  return {name: a if a.ndim else a.item() for name, a in arrays.items()}


def table(
  request: Request,
  file: str,
  label: str = '',
  client: str = '',
  split: str = '',
  cluster: str = '',
  weight: str = '',
  drop: tuple[str, ...] = (),
  sep: str = ',',
) -> Pool:
  """A table of .csv, .jsonl or .parquet, with a row per example; label=COLUMN."""
  import pandas as pd

  with reading(file):
    if '.parquet' in pathlib.Path(file).suffixes:
      df = pd.read_parquet(file)
    elif {'.json', '.jsonl'} & set(pathlib.Path(file).suffixes):
      df = pd.read_json(file, lines=True)
    else:
      df = pd.read_csv(file, sep=sep)
  columns = {'client': client, 'split': split, 'cluster': cluster, 'weight': weight}
  drop = (drop,) if isinstance(drop, str) else drop
  options = {'task': request.task} if request.task else {}
  return from_frame(df, label=label, drop=drop, **columns, **options)


def pfllib(request: Request, folder: str) -> Arrays:
  """Files of PFLlib: train/0.npz, test/0.npz, ...; a client per number."""
  columns: dict[str, list[Any]] = {'x': [], 'y': [], 'client': [], 'split': []}
  for i, split in enumerate(('train', 'test')):
    paths = pathlib.Path(folder, split).glob('*.npz')
    for path in sorted(paths, key=lambda path: int(path.stem)):
      with reading(path), zipfile.ZipFile(path) as archive:
        arrays = read_npy(archive.read('data.npy'), path)
        x, y = np.asarray(arrays['x'], np.float32), np.asarray(arrays['y'])
      if x.ndim == 4:  # [N, C, H, W]
        x = x[:, 0] if x.shape[1] == 1 else np.moveaxis(x, 1, -1)
      numbers = [np.full(len(y), number) for number in (int(path.stem), i)]
      for values, array in zip(columns.values(), (x, y, *numbers), strict=True):
        values.append(array)
  check(columns['x'], f'{folder}: has no train/0.npz')
  arrays = {name: np.concatenate(values) for name, values in columns.items()}
  if not arrays['split'].any():
    del arrays['split']
  config = pathlib.Path(folder, 'config.json')
  if config.is_file():
    arrays['num_classes'] = json.loads(config.read_text())['num_classes']
  return arrays


def saved(request: Request, folder: str) -> Pool:
  """A folder of `fesem-data --output=FOLDER`, whose x is mapped into memory."""
  with reading(folder):
    values = json.loads(pathlib.Path(folder, _VALUES).read_text())
    fields = dict[str, Any]()
    for name, v in values.items():
      fields[name] = tuple(v) if isinstance(v, list) else v
    for name in fields.pop('arrays'):
      path = pathlib.Path(folder, f'{name}.npy')
      fields[name] = np.load(path, mmap_mode='r' if name == 'x' else None)
    if 'server_x' in fields:
      fields['server_test'] = fields.pop('server_x'), fields.pop('server_y')
    return Pool(**fields)


def save(folder: pathlib.Path, pool: Pool) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  fields = {f.name: getattr(pool, f.name) for f in dataclasses.fields(pool)}
  if server_test := fields.pop('server_test'):
    fields |= dict(zip(('server_x', 'server_y'), server_test, strict=True))
  arrays = {name: a for name, a in fields.items() if isinstance(a, np.ndarray)}
  for name, array in arrays.items():
    with replacing(folder / f'{name}.npy') as file:
      np.save(file, array, allow_pickle=False)
  values = {name: value for name, value in fields.items() if name not in arrays}
  values['arrays'] = list(arrays)
  with replacing(folder / _VALUES) as file:
    file.write(json.dumps(values).encode())


def from_splits(train: FederatedData, test: FederatedData) -> Pool:
  """The pool of a federation, whose clients are natural ones."""
  info, columns = train.info, []
  for split in (train, test):
    client = np.repeat(np.arange(split.num_clients), np.asarray(split.sizes()))
    columns.append({'x': split.x, 'y': split.y, 'client': client})
  arrays = both_splits(*columns)
  arrays['test'] = arrays.pop('split') == 1
  if info.clusters is not None:
    arrays['cluster'] = np.asarray(info.clusters)[arrays['client']]
  return Pool(
    **arrays, task=train.task, num_classes=train.num_classes, scale=train.scale,
    class_names=info.class_names, names=info.names, cluster_names=info.cluster_names,
    weight=info.weights,
  )  # fmt: skip
