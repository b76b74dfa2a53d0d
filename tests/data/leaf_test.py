"""LEAF's folders load to what was written; bad files are named."""

import json

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import assert_same, break_leaf, write_leaf, writers


@pytest.mark.parametrize(
  'how', [{'shards': 3}, {'order': -1}, {'shards': 2, 'order': -1}, {'zipped': True}]
)
def test_order_of_users_and_shards_does_not_matter(tmp_path, how):
  write_leaf(tmp_path / 'a' / 'leaf_femnist', writers())
  write_leaf(tmp_path / 'b' / 'leaf_femnist', writers(), **how)
  a = data.load('femnist', data_dir=tmp_path / 'a')
  b = data.load('femnist', data_dir=tmp_path / 'b')
  for one, other in zip(a, b, strict=True):
    np.testing.assert_array_equal(one.info.names, other.info.names)
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    np.testing.assert_array_equal(one.offsets, other.offsets)


def test_optional_entries_and_other_key_orders_are_read(tmp_path):
  clients = writers()
  write_leaf(tmp_path / 'leaf_femnist', clients, hierarchies=['a', 'b', 'c'])
  path = next((tmp_path / 'leaf_femnist' / 'train').iterdir())
  content = json.loads(path.read_text())
  path.write_text(json.dumps(dict(reversed(content.items()))))
  train, _ = data.load('femnist', data_dir=tmp_path)
  assert_same(train, {n: a for n, (a, _) in clients.items()})


def test_any_leaf_folder_of_numbers(tmp_path):
  clients = writers()
  write_leaf(tmp_path, clients)
  train, test = data.load(f'leaf:{tmp_path}')
  assert train.x.shape == (10, 784)
  assert train.x.dtype == np.float32
  x, y = clients['f0000_14'][0]
  np.testing.assert_allclose(train.client(0)[0], x.reshape(5, -1) / 255, rtol=1e-6)
  np.testing.assert_array_equal(train.client(0)[1], y)
  assert len(test.y) == 5


def test_all_data_is_split_80_20(tmp_path):
  write_leaf(tmp_path, writers())
  (tmp_path / 'train').rename(tmp_path / 'all_data')
  for path in (tmp_path / 'test').iterdir():
    path.unlink()
  train, test = data.load(f'leaf:{tmp_path}')
  assert np.asarray(train.sizes()).tolist() == [4, 2, 1]
  assert np.asarray(test.sizes()).tolist() == [1, 1, 1]


def test_other_partitions_keep_the_files_split(tmp_path):
  clients = writers()
  write_leaf(tmp_path / 'leaf_femnist', clients)
  train, test = data.load('femnist', data_dir=tmp_path, partition='iid', num_clients=2)

  def every(part):
    return sorted(x.tobytes() for splits in clients.values() for x in splits[part][0])

  assert sorted(x.tobytes() for x in train.x) == every(0)
  assert sorted(x.tobytes() for x in test.x) == every(1)


def change_user(**entries):
  return break_leaf(lambda c, _: c['user_data'][c['users'][0]].update(entries))


def wrong_count(content, path):
  content['num_samples'][0] += 1


def lose_user(content, path):
  del content['user_data'][content['users'][0]]


def hide_user(content, path):
  content['users'].pop(0)
  content['num_samples'].pop(0)


def duplicate_across_shards(content, path):
  other = json.loads(sorted(path.parent.iterdir())[1].read_text())
  name = other['users'][0]
  content['users'].append(name)
  content['num_samples'].append(other['num_samples'][0])
  content['user_data'][name] = other['user_data'][name]


def drop_from_training(content, path):
  content['users'].pop(0)
  content['num_samples'].pop(0)
  content['user_data'].pop('f0001_10')


ONE = np.ones((3, 784))


@pytest.mark.parametrize(
  ('write', 'message'),
  [
    (break_leaf(lambda c, _: json.dumps(c)[:-900]), 'all_data_0'),
    (break_leaf(wrong_count), 'num_samples'),
    (break_leaf(lose_user), 'user f0001_10'),
    (break_leaf(hide_user), 'user f0001_10'),
    (break_leaf(duplicate_across_shards), 'user f0000_14'),
    (break_leaf(drop_from_training), 'f0001_10'),
    (change_user(x=[['a'] * 784] * 3), 'user f0001_10'),
    (change_user(x=(ONE * 9).tolist()), 'user f0001_10'),
    (change_user(y=[1, 62, 0]), 'user f0001_10'),
    (change_user(y=[1, 0.5, 0]), 'user f0001_10'),
    (change_user(y=[1, 0]), 'user f0001_10'),
  ],
)
def test_bad_leaf_files_are_named(tmp_path, write, message):
  write(tmp_path)
  with pytest.raises(UserError, match=message):
    data.load('femnist', data_dir=tmp_path)


def change_features(folder, x):
  write_leaf(folder, writers())
  break_leaf(lambda c, _: c['user_data']['f0001_10'].update(x=x))(folder / 'other')
  (folder / 'train').rename(folder / 'old')
  (folder / 'other' / 'leaf_femnist' / 'train').rename(folder / 'train')


def test_users_whose_features_differ_in_shape_are_named(tmp_path):
  change_features(tmp_path, [[1], [2], [3]])
  with pytest.raises(UserError, match='f0001_10'):
    data.load(f'leaf:{tmp_path}')


def test_real_leaf_fixture(real_data):
  train, test = data.load('femnist', data_dir=real_data)
  assert (len(train.y), len(test.y), train.num_clients) == (78, 89, 5)
  assert len(np.unique(np.concatenate([train.y, test.y]))) == 40
  assert np.median(train.x) == 255  # White paper.
  raw = json.loads((real_data / 'leaf_femnist' / 'train' / 'train.json').read_text())
  for i, name in enumerate(train.info.names):
    x, y = train.client(i)
    block = raw['user_data'][name]
    np.testing.assert_array_equal(y, block['y'])
    np.testing.assert_allclose(
      x.reshape(len(x), -1) / 255, block['x'], rtol=0, atol=1e-6
    )


def write_numbers(folder, users, **also):
  """One shard of users, name -> y, with a feature each, and `also` in user_data."""
  folder.mkdir(parents=True)
  blocks = {
    u: {'x': [[v / 8] for v in range(len(y))], 'y': y} for u, y in users.items()
  }
  counts = [len(y) for y in users.values()]
  content = {'users': list(users), 'num_samples': counts, 'user_data': blocks | also}
  (folder / 'a.json').write_text(json.dumps(content))


def test_an_empty_user_that_is_not_listed_is_left_out(tmp_path):
  for split in ('train', 'test'):
    write_numbers(tmp_path / split, {'a': [0, 1]}, lonely={'x': [], 'y': []})
  train, test = data.load(f'leaf:{tmp_path}')
  assert train.info.names.tolist() == test.info.names.tolist() == ['a']
  assert train.y.tolist() == test.y.tolist() == [0, 1]


def test_splits_of_other_users_are_chosen_from(tmp_path):
  for split, users in (('train', 'acd'), ('test', 'b')):
    write_numbers(tmp_path / split, {user: ['abcd'.index(user)] * 5 for user in users})
  with pytest.raises(UserError, match='`leaf_users=all`'):
    data.load(f'leaf:{tmp_path}')
  for users, names in (('all', 'abcd'), ('train', 'acd'), ('test', 'b')):
    splits = data.load(f'leaf:{tmp_path}', leaf_users=users)
    for split, count in zip(splits, (4, 1), strict=True):
      assert split.info.names.tolist() == list(names)
      assert split.num_classes == 4  # Of all users, so that one model fits.
      for i, name in enumerate(names):
        assert split.client(i)[1].tolist() == ['abcd'.index(name)] * count


@pytest.mark.parametrize(
  ('task', 'y', 'outputs'),
  [('regression', [0.5, -1.5, 2.5], 1), ('regression', [[1, 2], [3, 4], [5, 6]], 2),
   ('sequence', [[3], [-1], [0]], 4)],
)  # fmt: skip
def test_targets_of_other_tasks(tmp_path, task, y, outputs):
  for split in ('train', 'test'):
    write_numbers(tmp_path / split, {'a': y})
  train, test = data.load(f'leaf:{tmp_path}', task=task)
  assert (train.task, train.num_classes) == (test.task, test.num_classes)
  assert (train.task, train.num_classes) == (task, outputs)
  np.testing.assert_array_equal(train.y, np.array(y).reshape(3, -1))
  write_numbers(tmp_path / 'b' / 'train', {'a': [[1, 2]], 'b': [[1, 2, 3]]})
  write_numbers(tmp_path / 'b' / 'test', {'a': [[1, 2]]})
  with pytest.raises(UserError, match='b: shape'):
    data.load(f'leaf:{tmp_path}/b', task='regression')
  with pytest.raises(UserError, match='task'):
    data.load(f'leaf:{tmp_path}', task='guess')


def test_byte_order_marks_are_skipped_and_nan_is_named(tmp_path):
  for split in ('train', 'test'):
    write_numbers(tmp_path / split, {'a': [0, 1]})
    path = tmp_path / split / 'a.json'
    path.write_bytes(b'\xef\xbb\xbf' + path.read_bytes())
  assert data.load(f'leaf:{tmp_path}')[0].y.tolist() == [0, 1]
  path.write_text(path.read_text().replace('0.125', 'NaN'))
  with pytest.raises(UserError, match=r'a\.json'):
    data.load(f'leaf:{tmp_path}')
