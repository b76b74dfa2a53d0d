"""Files of a user's own data, and folders that fesem-data saves."""

import json
import pathlib

import numpy as np
import pandas as pd
import pytest

from fesem_jax.data import own_files, sources
from fesem_jax.data.federation import federate
from fesem_jax.data.pool import from_arrays
from tests.support.sources import parts


def columns(seed=0):
  rng = np.random.default_rng(seed)
  return {
    'x': rng.normal(size=(40, 3)).astype(np.float32),
    'y': np.arange(40) % 4,
    'client': np.array(['b', 'a', 'c', 'd'] * 10),
    'split': np.arange(40) % 5 == 0,
  }


def test_arrays_of_npz(tmp_path):
  arrays = columns() | {'scale': 0.5, 'num_classes': 6, 'weight': np.arange(40) % 4 + 1}
  np.savez(tmp_path / 'a.npz', **arrays)
  pool = sources.read(f'npz({tmp_path}/a.npz)')
  np.testing.assert_array_equal(pool.x, arrays['x'])
  np.testing.assert_array_equal(pool.names[pool.client], arrays['client'])
  np.testing.assert_array_equal(pool.test, arrays['split'])
  assert (pool.scale, pool.num_classes, pool.weight.tolist()) == (0.5, 6, [2, 1, 3, 4])


@pytest.mark.parametrize('name', ['a.csv', 'a.csv.gz', 'a.jsonl', 'a.parquet'])
def test_tables(tmp_path, name):
  arrays = columns()
  df = pd.DataFrame(arrays['x'], columns=['age', 'weight', 'note'])
  df['label'], df['hospital'] = arrays['y'], arrays['client']
  write = {'csv': df.to_csv, 'parquet': df.to_parquet}.get(name.split('.')[1])
  if write:
    write(tmp_path / name, index=False)
  else:
    df.to_json(tmp_path / name, orient='records', lines=True, double_precision=15)
  pool = sources.read(f'table({tmp_path}/{name}, client=hospital, drop=[note])')
  np.testing.assert_allclose(pool.x, arrays['x'][:, :2], rtol=1e-6)
  np.testing.assert_array_equal(pool.y, arrays['y'])
  np.testing.assert_array_equal(pool.names[pool.client], arrays['client'])


@pytest.mark.parametrize('shape', [(1, 6, 6), (3, 6, 6), (7,)])
@pytest.mark.parametrize('split', [True, False])
def test_pfllib(tmp_path, shape, split):
  rng, expected = np.random.default_rng(0), {}
  for i, part in enumerate(('train', 'test')[: 1 + split]):
    (tmp_path / part).mkdir()
    for client in range(11):
      x, y = rng.normal(size=(4, *shape)).astype(np.float32), rng.integers(0, 3, 4)
      np.savez_compressed(tmp_path / part / f'{client}.npz', data={'x': x, 'y': y})
      x = {1: x[:, 0], 3: np.moveaxis(x, 1, -1), 7: x}[shape[0]]
      expected[str(client), bool(i)] = x, y
  (tmp_path / 'config.json').write_text(json.dumps({'num_classes': 5}))
  pool = sources.read(f'pfllib({tmp_path})')
  assert (pool.num_classes, pool.names.tolist()) == (5, [str(i) for i in range(11)])
  assert (pool.test is None) == (not split)
  result = parts(pool)
  assert result.keys() == expected.keys()
  for part, (x, y) in expected.items():
    np.testing.assert_array_equal(result[part][0], x)
    np.testing.assert_array_equal(result[part][1], y)


def assert_same(pool, other):
  for name, field in vars(pool).items():
    np.testing.assert_equal(getattr(other, name), field, err_msg=name)


@pytest.mark.parametrize('dataset', [
  'digits', 'diabetes', 'synthetic_mixture(groups=3)', 'npz(a.npz)',
])  # fmt: skip
def test_a_pool_is_saved_and_mapped(tmp_path, monkeypatch, dataset):
  monkeypatch.chdir(tmp_path)
  arrays = columns() | {'weight': np.arange(40) % 4, 'cluster': ['x', 'y'] * 20}
  np.savez('a.npz', **arrays)
  own_files.save(pathlib.Path('saved'), sources.read('npz(a.npz)', num_clients=6))
  pool = sources.read(dataset, num_clients=6)
  own_files.save(pathlib.Path('saved'), pool)  # In place of the one before.
  again = sources.read('saved(saved)')
  assert isinstance(again.x, np.memmap)
  assert_same(pool, again)


def test_dealt_clients_are_saved(tmp_path):
  splits = federate(
    sources.read('digits'), 'rotated(groups=2)+dirichlet(0.5)', num_clients=6
  )
  own_files.save(tmp_path, own_files.from_splits(*splits))
  again = federate(sources.read(f'saved({tmp_path})'))
  for split, other in zip(splits, again, strict=True):
    np.testing.assert_array_equal(split.x, other.x)
    np.testing.assert_array_equal(split.y, other.y)
    np.testing.assert_array_equal(split.offsets, other.offsets)
    np.testing.assert_array_equal(split.info.names, other.info.names)
    np.testing.assert_array_equal(split.info.clusters, other.info.clusters)
    assert (split.scale, split.num_classes) == (other.scale, other.num_classes)


def test_examples_of_natural_clients_stay_in_the_file(tmp_path):
  arrays = columns() | {'x': np.zeros((40, 2, 2), np.uint8)}
  order = np.lexsort([arrays['client'], arrays['split']])
  arrays = {name: array[order] for name, array in arrays.items()}
  own_files.save(tmp_path, from_arrays(**arrays))
  for split in federate(sources.read(f'saved({tmp_path})')):
    x = split.x
    while not isinstance(x, np.memmap):
      x = x.base
    assert not split.x.flags.owndata
