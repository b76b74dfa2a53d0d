"""TensorFlow Federated's files; bad ones are named."""

import sqlite3

import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import assert_same, write_hdf5, write_tff_sqlite, writers


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('hdf5 cut short', 'train'),
    ('sqlite that is none', 'all'),
    ('sqlite row', 'client f0001_10'),
    ('nothing', 'must hold'),
  ],
)
def test_bad_tff_files_are_named(tmp_path, name, message):
  folder = tmp_path / 'tff_femnist'
  if name.startswith('hdf5'):
    write_hdf5(folder, writers())
    path = folder / 'fed_emnist_train.h5'
    path.write_bytes(path.read_bytes()[:500])
  elif name == 'nothing':
    folder.mkdir(parents=True)
  else:
    write_tff_sqlite(folder, writers())
    path = folder / 'emnist_all.sqlite'
    if 'none' in name:
      path.write_bytes(b'not a database' * 100)
    else:
      db = sqlite3.connect(path)
      db.execute(
        "UPDATE examples SET serialized_example_proto = x'00' "
        "WHERE client_id = 'f0001_10'"
      )
      db.commit()
      db.close()
  with pytest.raises(UserError, match=message):
    data.load('femnist', data_dir=tmp_path)


def digits():
  """The writers, with labels of digits only."""
  return {n: tuple((x, y % 10) for x, y in parts) for n, parts in writers().items()}


DIGITS = {
  'hdf5': lambda folder: write_hdf5(folder, digits(), '_digitsonly'),
  'tff sqlite': lambda folder: write_tff_sqlite(folder, digits(), 'digits_only'),
}


@pytest.mark.parametrize('form', DIGITS)
def test_digits_only_have_ten_classes(tmp_path, form):
  DIGITS[form](tmp_path / 'tff_femnist')
  train, test = data.load('femnist', data_dir=tmp_path, source='tff_digits')
  assert train.num_classes == 10
  assert_same(train, {n: a for n, (a, _) in digits().items()})
  assert_same(test, {n: b for n, (_, b) in digits().items()})


def test_digits_are_taken_unless_there_is_more(tmp_path):
  write_hdf5(tmp_path / 'tff_femnist', digits(), '_digitsonly')
  assert data.load('femnist', data_dir=tmp_path)[0].num_classes == 10
  write_hdf5(tmp_path / 'tff_femnist', writers())
  assert data.load('femnist', data_dir=tmp_path)[0].num_classes == 62
  write_hdf5(tmp_path / 'tff_femnist', writers(), '_digitsonly')
  with pytest.raises(UserError, match='is not in'):
    data.load('femnist', data_dir=tmp_path, source='tff_digits')
