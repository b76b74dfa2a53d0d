"""A user's own arrays load to what was saved; bad ones are named."""

import zipfile

import numpy as np
import pandas as pd
import pytest

from experiments import prepare_data
from fesem_jax import data
from fesem_jax.utils import safe_files
from fesem_jax.utils.errors import UserError
from tests.support.sources import own_arrays


@pytest.mark.parametrize('compress', [False, True])
def test_a_flipped_byte_is_an_error_or_harmless(tmp_path, compress):
  save = np.savez_compressed if compress else np.savez
  save(tmp_path / 'mine.npz', **own_arrays())
  whole = (tmp_path / 'mine.npz').read_bytes()
  rng = np.random.default_rng(0)
  refused = []
  for at in rng.choice(len(whole), 200, replace=False):
    broken = bytearray(whole)
    broken[at] ^= 1 << rng.integers(8)
    (tmp_path / 'broken.npz').write_bytes(broken)
    try:
      data.load(f'npz:{tmp_path}/broken.npz')
    except UserError as e:
      refused.append('broken.npz' in str(e))
  assert len(refused) > 50
  assert all(refused)


def test_numbered_clients_and_named_clusters_survive_conversion(tmp_path):
  cluster = np.where(np.arange(24) % 12 < 6, 'old', 'young')
  x = np.arange(48, dtype=np.float32).reshape(24, 2)
  client = np.arange(24) % 12
  np.savez(tmp_path / 'a.npz', x=x, y=client % 2, client=client, cluster=cluster)
  train, test = data.load(f'npz:{tmp_path}/a.npz')
  prepare_data.write(tmp_path / 'new' / 'b.npz', train, test)
  again = data.load(f'npz:{tmp_path}/new/b.npz')
  for one, other in zip((train, test), again, strict=True):
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.info.names, other.info.names)
    np.testing.assert_array_equal(one.info.clusters, other.info.clusters)
    # Clusters that have names keep them.
    want = ['old' if int(name) < 6 else 'young' for name in one.info.names]
    assert other.info.clusters.tolist() == want
  assert [p.name for p in (tmp_path / 'new').iterdir()] == ['b.npz']
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match=r'Cannot write --output=.*File exists'):
    prepare_data.write(tmp_path / 'file' / 'b.npz', train, test)


def test_own_arrays(tmp_path):
  split = np.repeat([0, 0, 0, 1], 3)
  cluster = np.array([1, 0, 1] * 4)
  arrays = own_arrays(split=split, cluster=cluster)
  np.savez(tmp_path / 'mine.npz', **arrays)
  train, test = data.load(f'npz:{tmp_path}/mine.npz')
  assert train.info.names.tolist() == ['a', 'b', 'c']
  assert train.info.clusters.tolist() == [0, 1, 1]
  for i, name in enumerate('abc'):
    for one, part in ((train, 0), (test, 1)):
      rows = (arrays['client'] == name) & (split == part)
      np.testing.assert_array_equal(one.client(i)[0], arrays['x'][rows])
      np.testing.assert_array_equal(one.client(i)[1], arrays['y'][rows])
  np.savez(tmp_path / 'whole.npz', **own_arrays())
  train, test = data.load(f'npz:{tmp_path}/whole.npz')
  assert np.asarray(train.sizes()).tolist() == [3, 3, 3]
  assert np.asarray(test.sizes()).tolist() == [1, 1, 1]


def test_uint8_arrays_are_scaled_as_they_say(tmp_path):
  x = np.arange(12 * 4, dtype=np.uint8).reshape(12, 4)
  for changes, scale in (
    ({'x': x.reshape(12, 2, 2)}, 1 / 255),
    ({'x': x, 'scale': np.array(1 / 255)}, 1 / 255),
    ({'x': x, 'scale': 1}, 1.0),
  ):
    for loaded in data.load('mine', arrays=own_arrays(**changes)):
      assert loaded.scale == scale
      assert loaded.x.dtype == np.uint8


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'client': None}, 'lacks the array client'),
    ({'y': np.zeros(5, int)}, 'y has 5 rows; x has 12'),
    ({'y': np.arange(12) - 1}, 'labels must be whole numbers from 0'),
    ({'y': np.arange(12) / 2}, 'labels must be whole numbers from 0'),
    (
      {'y': np.zeros((12, 3), int)},
      'one for each example; for other targets choose',
    ),
    ({'x': np.ones((12, 4), np.uint8)}, r'x is uint8 of shape \(12, 4\), .*`scale`'),
    ({'y': np.arange(12) + 2**31}, r'label 2147483659 is not in 0\.\.1048575'),
    ({'y': np.array(['a'] * 12)}, 'labels that are not numbers'),
    ({'x': np.array([['a']] * 12)}, 'x is <U1'),
    ({'x': np.arange(12.0)}, r'x has shape \(12,\)'),
    ({'scale': np.array(np.nan)}, 'scale nan must be positive'),
    ({'scale': np.array([1, 2])}, 'is damaged or not what it should be'),
    ({'x': np.full((12, 2), np.nan)}, 'row 0 of x holds values that are not finite'),
    ({'split': np.full(12, 2)}, 'split must hold 0'),
    ({'split': np.array([1, 0, 0] * 4)}, 'client b has no training examples'),
    ({'cluster': np.r_[np.zeros(11), np.nan]}, 'cluster of row 11 is nan; give every'),
    (
      {'client': np.r_[np.zeros(11), np.inf]},
      'client of row 11 is inf; give every row',
    ),
    ({'client': np.array(['a', ' '] * 6)}, 'client of row 1 is empty; give every row'),
    ({'client': np.array(['a', '<NA>'] * 6)}, 'client of row 1 is <NA>; give every'),
    ({'client': np.array([0, 'NaT'], 'M8[s]').repeat(6)}, 'client of row 6 is NaT; gi'),
    ({'cluster': np.array(['a', 'nan'] * 6)}, 'cluster of row 1 is nan; give every'),
    ({'cluster': np.arange(12)}, 'client .* has examples of several clusters'),
    ({'num_classes': np.array(2)}, r'label 2 is not in 0\.\.1'),
    ({'num_classes': np.array(10**9)}, 'num_classes is 1000000000; a whole number f'),
    ({'num_classes': np.array(-4)}, 'num_classes is -4; a whole number from 1 to'),
    ({'num_classes': np.array(np.nan)}, 'num_classes is nan; a whole number from 1'),
    ({'num_classes': np.array([3, 3])}, 'num_classes must be one number'),
    ({'x': np.zeros((12, 0))}, r'an example has shape \(0,\), which holds no features'),
    ({'x': np.full((12, 2), 1e300)}, 'row 0 of x holds values that are not finite'),
    ({'scale': np.array(1e300)}, r'scale 1e\+300 must be positive, and a 32-bit'),
    ({'x': np.zeros((0, 2)), 'y': np.zeros(0, int), 'client': np.zeros(0)}, 'no ex'),
  ],
)
def test_bad_arrays_are_named(tmp_path, changes, message):
  np.savez(tmp_path / 'mine.npz', **own_arrays(**changes))
  with pytest.raises(UserError, match=message):
    data.load(f'npz:{tmp_path}/mine.npz')


@pytest.mark.parametrize('missing', [None, np.nan, pd.NA, pd.NaT, '', 'nan'])
@pytest.mark.parametrize('name', ['client', 'cluster'])
def test_missing_clients_are_no_client_called_nan(missing, name):
  column = pd.Series(['a', 'b', 'c'] * 4, dtype=object)
  column[3] = missing
  with pytest.raises(
    UserError, match=f'{name} of row 3 is .*; give every row a {name}'
  ):
    data.load('mine', arrays=own_arrays(**{name: column}))


def test_pickled_objects_are_never_unpickled(tmp_path):
  class Trap:
    def __reduce__(self):
      return (tmp_path.joinpath('sprung').touch, ())

  objects = np.array([Trap()] * 12, object)
  np.savez(tmp_path / 'mine.npz', **own_arrays(client=objects))
  with pytest.raises(UserError, match='pickled objects, which are never unpickled'):
    data.load(f'npz:{tmp_path}/mine.npz')
  assert not (tmp_path / 'sprung').exists()
  (tmp_path / 'cut.npz').write_bytes((tmp_path / 'mine.npz').read_bytes()[:200])
  with pytest.raises(UserError, match=r'cut\.npz is damaged'):
    data.load(f'npz:{tmp_path}/cut.npz')


def test_a_member_that_is_no_array_is_named(tmp_path):
  with zipfile.ZipFile(tmp_path / 'own.npz', 'w') as archive:
    archive.writestr('x.npy', b'no header of an array')
  with pytest.raises(UserError, match=r'own\.npz is damaged .* x is not an array'):
    safe_files.read_npz(tmp_path / 'own.npz')
