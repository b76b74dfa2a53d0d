"""Clients whose rows are listed hold them, in the order that is given."""

import json
import pickle

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data.partitions import listed_rows
from fesem_jax.utils.errors import UserError
from tests.support.sources import sizes


def load(client_rows, split=None, **options):
  """Twelve examples, number i in row i."""
  arrays = {'x': np.arange(12.0)[:, None], 'y': np.arange(12) % 3}
  if split is not None:
    arrays['split'] = np.array(split)
  return data.load(
    'mine', arrays=arrays, partition='rows', client_rows=client_rows, **options
  )


def numbers(split):
  return [
    split.client(i)[0][:, 0].astype(int).tolist() for i in range(len(sizes(split)))
  ]


def test_train_and_test_are_as_listed():
  rows = [{'train': [5, 3], 'test': [0]}, {'train': [9], 'test': []}]
  train, test = load(rows)
  assert numbers(train) == [[5, 3], [9]]
  assert numbers(test) == [[0], []]
  assert train.info.names.tolist() == ['client0', 'client1']
  apart, _ = load({'north': rows[0], 'south': rows[1]})
  assert numbers(apart) == numbers(train)
  assert apart.info.names.tolist() == ['north', 'south']


def test_lists_are_split_80_20_in_their_order():
  rows = [11, 9, 7, 5, 3, 1, 0, 2, 4, 6]
  (train, test), (again, _), (other, _) = (load([rows], seed=s) for s in (0, 0, 1))
  assert (len(train.y), len(test.y)) == (8, 2)
  for split in (train, test):
    (held,) = numbers(split)
    assert held == [row for row in rows if row in held]
  assert sorted(numbers(train)[0] + numbers(test)[0]) == sorted(rows)
  assert numbers(train) == numbers(again) != numbers(other)


def test_rows_count_on_to_the_test_split_of_the_data():
  split = [0, 1] * 6  # Rows 0..5 are examples 0, 2, ..., 10, rows 6..11 the others.
  train, test = load([[2, 1, 7], [3, 6]], split)
  assert (numbers(train), numbers(test)) == ([[4, 2], [6]], [[3], [1]])
  mixed = [{'train': [0, 11], 'test': [6]}, {'train': [8], 'test': [1]}]  # FL-bench's.
  train, test = load(mixed, split)
  assert (numbers(train), numbers(test)) == ([[0, 11], [5]], [[1], [2]])


def test_a_test_split_is_dealt_like_the_classes_for_training():
  y = np.tile(np.repeat([0, 1], 20), 2)
  arrays = {'x': np.zeros((80, 1)), 'y': y, 'split': np.repeat([0, 1], 40)}
  rows = [[*range(15), 20], [*range(15, 20)], [*range(21, 40)]]
  _, test = data.load('mine', arrays=arrays, partition='rows', client_rows=rows)
  counts = [np.bincount(test.client(i)[1], minlength=2).tolist() for i in range(3)]
  assert counts == [[15, 1], [5, 0], [0, 19]]


FILES = {
  'list.json': (json.dumps([[3, 1, 4], [0, 2]]), None),
  'names.json': (json.dumps({'a': [3, 1, 4], 'b': [0, 2]}), ['a', 'b']),
  'net_dataidx_map.txt': ('{\n0: [\n3, 1, 4\n]\n1: [\n0, 2\n]\n}\n', ['0', '1']),
  'scale.csv': ('client_id,sample_path\nb,x\na,x\nb,x\na,x\na,x\n', ['b', 'a']),
  'gld.csv': ('user_id,image_id\nb,x\na,x\nb,x\na,x\na,x\n', ['b', 'a']),
}


@pytest.mark.parametrize('name', FILES)
def test_files_of_other_frameworks(tmp_path, name):
  text, names = FILES[name]
  (tmp_path / name).write_text(text)
  found = listed_rows.read(tmp_path / name)
  want = [[0, 2], [1, 3, 4]] if name.endswith('.csv') else [[3, 1, 4], [0, 2]]
  assert [rows.tolist() for rows in found.train] == want
  assert (found.names, found.test) == (names, None)
  train, test = load(str(tmp_path / name))
  held = np.concatenate([train.x, test.x])[:, 0]
  assert sorted(held) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
  'held', [np.array([[3, 1], [0, 2]]), {0: np.array([3, 1]), 1: np.array([0, 2])}]
)
def test_rows_that_numpy_has_saved(tmp_path, held):
  np.save(tmp_path / 'map.npy', held, allow_pickle=True)
  found = listed_rows.read(tmp_path / 'map.npy')
  assert [rows.tolist() for rows in found.train] == [[3, 1], [0, 2]]


def test_the_partition_of_fl_bench(tmp_path):
  rows = [
    {'train': np.array([3, 1], np.int32), 'val': np.array([8]), 'test': np.array([4])},
    {'train': np.array([0]), 'val': np.array([]), 'test': np.array([])},
  ]
  held = {'separation': {'train': [0, 1], 'total': 2}, 'data_indices': rows}
  (tmp_path / 'partition.pkl').write_bytes(pickle.dumps(held))
  train, test = load(tmp_path / 'partition.pkl')
  assert (numbers(train), numbers(test)) == ([[3, 1], [0]], [[4], []])


@pytest.mark.parametrize(
  ('rows', 'message'),
  [
    ('', '`client_rows`'),
    ('absent.json', r'absent\.json'),
    ([[0, 1], [1, 2]], 'row 1'),
    ([{'train': [0], 'test': [0]}], 'row 0'),
    ([[0, 1], []], 'client 1'),
    ({'a': {'train': [], 'test': [1]}}, 'client a'),
    ([[0, -1]], 'row -1'),
    ([[0, 1], [2]], 'client 1'),
    ([{'train': [0], 'test': []}], 'no test rows'),
    ({1: [0, 1], '1': [2, 3]}, "'1' twice"),
    ({'train': [0, 1], 'test': [2]}, 'train and test'),
  ],
)
def test_bad_lists_are_named(rows, message):
  with pytest.raises(UserError, match=message):
    load(rows)


def test_test_rows_that_count_from_0_are_refused():
  split = [0, 1] * 6
  with pytest.raises(UserError, match='no test row above 1'):
    load([{'train': [2, 3], 'test': [0, 1]}], split)
  train, test = load([{'train': [2, 3], 'test': [6, 7]}], split)
  assert (numbers(train), numbers(test)) == ([[4, 6]], [[1, 3]])


def test_options_that_do_not_fit_are_named():
  for options, message in (
    ({'examples_per_client': 3}, '`examples_per_client` does not apply'),
    ({'min_examples': 3}, '`min_examples` chooses natural clients'),
  ):
    with pytest.raises(UserError, match=message):
      load([[0, 1], [2, 3]], **options)
  with pytest.raises(UserError, match='must be a product of two'):
    data.load('digits', partition='rotated+rows', client_rows=[[0, 1]])
  with pytest.raises(UserError, match='`client_rows` is for `partition=rows`'):
    data.load('digits', client_rows=[[0, 1]])
