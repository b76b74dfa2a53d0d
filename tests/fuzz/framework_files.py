"""Files of other frameworks: pickles of arrays, generated folders, lists of rows."""

import json
import pickle

import h5py
import numpy as np

from fesem_jax import data
from tests.fuzz import mutations
from tests.fuzz.forms import Format, all_of, bytes_of, json_of, one_of, plausible

ROWS = ('rows.json', 'rows.txt', 'rows.csv', 'partition.pkl')


def _write_pickles(folder):
  rng = np.random.default_rng(0)
  of_python = folder / 'cifar-100-python'
  of_python.mkdir(parents=True)
  for name, protocol in (('train', 2), ('test', 4)):
    held = {
      'data': rng.integers(0, 256, (6, 3072)).astype(np.uint8),
      'fine_labels': rng.integers(0, 100, 6).tolist(),
      'coarse_labels': rng.integers(0, 20, 6).tolist(),
    }
    (of_python / name).write_bytes(pickle.dumps(held, protocol))
  for split in ('train', 'test'):
    (folder / 'pfllib' / split).mkdir(parents=True)
    for client in range(2):
      held = {'x': rng.normal(size=(4, 1, 5, 5)), 'y': rng.integers(0, 3, 4)}
      np.savez(folder / 'pfllib' / split / f'{client}.npz', data=held)
  (folder / 'pfllib' / 'config.json').write_text(json.dumps({'num_classes': 3}))
  (folder / 'flbench').mkdir()
  np.save(folder / 'flbench' / 'data.npy', rng.normal(size=(9, 4)))
  np.save(folder / 'flbench' / 'targets.npy', np.arange(9) % 3)
  _write_rows(folder / 'flbench')


def _read_pickles(folder):
  with all_of() as each:
    with each():
      plausible(data.load('cifar100', data_dir=folder, num_clients=2))
    for name in ('pfllib', 'flbench'):
      with each():
        plausible(data.load(f'{name}:{folder / name}'))


def _write_rows(folder):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'rows.json').write_text(json.dumps({'a': [3, 1, 5], 'b': [0, 2]}))
  (folder / 'rows.txt').write_text('{\n0: [\n3, 1, 5\n]\n1: [\n0, 2\n]\n}\n')
  (folder / 'rows.csv').write_text('client_id,x\na,1\nb,2\na,3\nb,4\n')
  rows = [
    {'train': np.array([3, 1]), 'val': [], 'test': [5]},
    {'train': np.array([0]), 'val': [], 'test': []},
  ]
  (folder / 'partition.pkl').write_bytes(pickle.dumps({'data_indices': rows}))


def _read_rows(folder):
  arrays = {'x': np.zeros((6, 2)), 'y': np.arange(6) % 3}
  with all_of() as each:
    for name in ROWS:
      with each():
        rows = str(folder / name)
        plausible(data.load('a', arrays=arrays, partition='rows', client_rows=rows))


def _write_hdf5(folder):
  rng = np.random.default_rng(0)
  for name in ('tff_cifar100', 'tff_shakespeare'):
    (folder / name).mkdir(parents=True)
  for split in ('train', 'test'):
    with h5py.File(folder / 'tff_cifar100' / f'fed_cifar100_{split}.h5', 'w') as file:
      for client in range(2):
        x = rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
        file[f'examples/{client}/image'] = x
        file[f'examples/{client}/label'] = rng.integers(0, 100, 4)
    with h5py.File(folder / 'tff_shakespeare' / f'shakespeare_{split}.h5', 'w') as file:
      file['examples/KING/snippets'] = [b'a' * 60, b'b' * 40]


def _read_hdf5(folder):
  with all_of() as each:
    for name in ('cifar100', 'shakespeare'):
      with each():
        plausible(data.load(name, data_dir=folder))


def _change_rows(rng, folder):
  path = folder / ('rows.txt', 'rows.csv')[rng.integers(2)]
  path.write_bytes(mutations.of_lines(rng, path.read_text(), ','))


FORMATS = {
  'pickles of arrays': Format(
    _write_pickles, bytes_of('train', 'test', '*.npz', '*.pkl', '*.npy'), _read_pickles
  ),
  'rows of clients': Format(
    _write_rows,
    one_of(bytes_of('*.pkl', '*.csv', '*.txt'), json_of('*.json'), _change_rows),
    _read_rows,
  ),
  'HDF5 of two more sets': Format(_write_hdf5, bytes_of('*.h5'), _read_hdf5),
}
