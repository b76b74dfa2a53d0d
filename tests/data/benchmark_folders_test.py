"""Folders of PFLlib and FL-bench load to what was written."""

import json
import os
import pickle

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import sizes


def write_pfllib(folder, shape=(1, 6, 6), counts=(4, 3), clients=11, **changes):
  """As PFLlib's save_file: a dict in each file. Returns (x, y) by split and client."""
  rng = np.random.default_rng(0)
  held = {}
  for split, count in zip(('train', 'test'), counts, strict=True):
    (folder / split).mkdir(parents=True)
    for client in range(clients):
      x = rng.normal(size=(count, *shape)).astype(np.float32)
      y = rng.integers(0, 3, count)
      held[split, client] = x, y
      with (folder / split / f'{client}.npz').open('wb') as file:
        np.savez_compressed(file, data={'x': x, 'y': y} | changes)
  (folder / 'config.json').write_text(json.dumps({'num_classes': 5, 'alpha': 0.1}))
  return held


@pytest.mark.parametrize('shape', [(1, 6, 6), (3, 6, 6), (7,), (9, 1, 8)])
def test_pfllib(tmp_path, shape):
  held = write_pfllib(tmp_path, shape)
  splits = data.load(f'pfllib:{tmp_path}')
  for split, name in zip(splits, ('train', 'test'), strict=True):
    assert split.info.names.tolist() == [f'client{i:02d}' for i in range(11)]
    assert (split.num_classes, split.scale) == (5, 1.0)
    for client in range(11):
      x, y = held[name, client]
      if shape[0] == 3:
        x = x.transpose(0, 2, 3, 1)
      elif shape[0] == 1:
        x = x[:, 0]
      np.testing.assert_array_equal(split.client(client)[0], x)
      np.testing.assert_array_equal(split.client(client)[1], y)


@pytest.mark.parametrize(
  ('config', 'gone', 'message'),
  [
    ({'num_clients': 4}, (), 'has 3 files .* in train/ .* config.json says 4 clients'),
    ({}, ('test/2.npz',), r'in train/ and 2 in test/; copy all of them'),
    ({'num_clients': 3}, ('train/2.npz', 'test/2.npz'), 'says 3 clients'),
  ],
)
def test_files_of_clients_that_lack_are_told(tmp_path, config, gone, message):
  write_pfllib(tmp_path, clients=3)
  (tmp_path / 'config.json').write_text(json.dumps({'num_classes': 5} | config))
  for name in gone:
    (tmp_path / name).unlink()
  with pytest.raises(UserError, match=message):
    data.load(f'pfllib:{tmp_path}')


def test_clients_of_pfllib_without_examples_are_left_out(tmp_path):
  write_pfllib(tmp_path, clients=3)
  x, y = np.zeros((0, 1, 6, 6), np.float32), np.zeros(0, int)
  for split in ('train', 'test'):
    np.savez_compressed(tmp_path / split / '1.npz', data={'x': x, 'y': y})
  train, _ = data.load(f'pfllib:{tmp_path}')
  assert train.info.names.tolist() == ['client0', 'client2']


def test_pfllib_without_a_test_split_is_split_80_20(tmp_path):
  write_pfllib(tmp_path, counts=(5, 1), clients=2)
  (tmp_path / 'test').rename(tmp_path / 'other')
  (tmp_path / 'config.json').unlink()
  train, test = data.load(f'pfllib:{tmp_path}')
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([4, 4], [1, 1])
  assert train.num_classes == 1 + max(train.y.max(), test.y.max())


class Runs:
  def __reduce__(self):
    return os.mkdir, ('made',)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'y': Runs()}, 'mkdir'),
    ({'y': np.array([0, 1, 2, 5])}, '5 is not in'),
  ],
)
def test_bad_files_of_pfllib_are_named(tmp_path, monkeypatch, changes, message):
  monkeypatch.chdir(tmp_path)
  write_pfllib(tmp_path, clients=1, counts=(4, 4), **changes)
  with pytest.raises(UserError, match=message):
    data.load(f'pfllib:{tmp_path}')
  assert not (tmp_path / 'made').exists()


@pytest.mark.parametrize('split', [True, False])
@pytest.mark.parametrize(
  ('shape', 'kind', 'scale'),
  [((784,), np.float64, 1.0), ((5, 5, 3), np.uint8, 1 / 255), ((60,), np.float32, 1.0)],
)
def test_fl_bench(tmp_path, shape, kind, scale, split):
  rng = np.random.default_rng(0)
  x, y = rng.integers(0, 2, (10, *shape)).astype(kind), np.arange(10) % 3
  np.save(tmp_path / 'data.npy', x)
  np.save(tmp_path / 'targets.npy', y)
  rows = [np.array([7, 1, 2, 9, 3]), np.array([0, 4])]
  if split:
    rows = [{'train': r[1:], 'val': [], 'test': r[:1]} for r in rows]
  held = {'separation': {'total': 2}, 'data_indices': rows}
  (tmp_path / 'partition.pkl').write_bytes(pickle.dumps(held))
  train, test = data.load(f'flbench:{tmp_path}')
  assert (train.num_classes, train.scale) == (3, scale)
  assert train.example_shape == ((28, 28) if shape == (784,) else shape)
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([4, 1], [1, 1])
  if split:
    np.testing.assert_array_equal(train.client(0)[1], y[[1, 2, 9, 3]])
    np.testing.assert_array_equal(test.x[0].ravel(), x[7].ravel())
