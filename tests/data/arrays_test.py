"""A user's own arrays load to what was saved; bad ones are named."""

import dataclasses
import re
import zipfile

import numpy as np
import pandas as pd
import pytest

from experiments import prepare_data
from fesem_jax import data
from fesem_jax.data import arrays
from fesem_jax.utils import safe_files
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once
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
    ({'y': np.zeros(5, int)}, 'y has 5 rows; x has 12'),
    ({'y': np.arange(12) - 1}, 'from 0.*the least is -1: number the classes from 0'),
    ({'y': np.arange(12) / 2}, 'labels must be whole numbers from 0'),
    ({'y': np.zeros((12, 3), int)}, 'one for each example; for other targets choose'),
    ({'x': np.ones((12, 4), np.uint8)}, 'x: uint8'),
    ({'y': np.arange(12) + 2**31}, r'label 2147483659 is not in 0\.\.1048575'),
    ({'y': np.array(['a', *[''] * 11])}, 'y of row 1 is empty; give every row'),
    ({'y': np.array([*'abc'] * 4), 'num_classes': 4},
     'has 3 names of classes, but num'),
    ({'y': np.eye(3)[np.arange(12) % 3], 'num_classes': 4}, 'has 3 columns of classes'),
    ({'class_names': np.array(['a', 'b'])}, 'class_names must be 3 strings'),
    ({'client': None, 'split': np.zeros(12)}, 'must hold both 0 .training. and 1'),
    ({'x': np.array([['a']] * 12)}, 'x is <U1'),
    ({'x': np.arange(12.0)}, r'x has shape \(12,\)'),
    ({'scale': np.array(np.nan)}, 'scale nan must be positive'),
    ({'scale': np.array([1, 2])}, 'scale must be one number, e.g. 0.003922 for pix'),
    ({'scale': np.array('1/255')}, 'scale must be one number'),
    ({'client': np.array([b'a', b'\xff'] * 6)},
     'client holds bytes that are not UTF-8'),
    ({'client': np.array(['a', 'a '] * 6)}, "client: 'a' also occurs with blanks"),
    ({'split': np.zeros(12)}, 'split has no test examples .1.; leave out split'),
    ({'class_names': np.array([*'aba'])}, "class_names has 'a' twice"),
    ({'class_names': np.arange(3)}, 'class_names must be strings'),
    ({'y': np.array(['a', ' '] * 6)}, 'y of row 1 is empty; give every row the name'),
    ({'y': np.array(['a', 'nan'] * 6)}, 'y of row 1 is nan; give every row the name'),
    ({'y': np.array(['a', '<NA>'] * 6)}, 'y of row 1 is <NA>; .*give class_names'),
    ({'y': np.array(['a', 'a '] * 6)}, "y: 'a' also occurs with blanks"),
    ({'y': np.array(['a', 'b'] * 6), 'class_names': np.array(['a', 'c'])},
     "y of row 1 is 'b', which is not among class_names"),
    ({'x': np.full((12, 2), np.nan)}, 'row 0 of x holds values that are not finite'),
    ({'split': np.full(12, 2)}, 'split must hold 0'),
    ({'split': np.array([1, 0, 0] * 4)}, 'client b has no training examples'),
    ({'cluster': np.r_[np.zeros(11), np.nan]}, 'cluster of row 11 is nan; give every'),
    ({'client': np.r_[np.zeros(11), np.inf]},
     'client of row 11 is inf; give every row'),
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
)  # fmt: skip
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


@pytest.mark.parametrize('partition', ['', 'iid', 'dirichlet', 'labels', 'noisy'])
def test_arrays_without_clients_are_dealt(partition):
  arrays = own_arrays(client=None)
  train, test = data.load('mine', arrays=arrays, partition=partition, num_clients=3)
  assert train.info.names.tolist() == ['client0', 'client1', 'client2']
  assert len(train.y) + len(test.y) == 12
  with pytest.raises(UserError, match='`name=mine` has no natural clients'):
    data.load('mine', arrays=arrays, partition='natural')


def test_arrays_without_clients_keep_their_split():
  split = np.arange(12) // 9  # The last three are test examples.
  arrays = own_arrays(client=None, split=split)
  train, test = data.load('mine', arrays=arrays, num_clients=2)
  for one, part in ((train, 0), (test, 1)):
    assert sorted(one.x[:, 0]) == sorted(arrays['x'][split == part, 0])


def test_a_damaged_directory_does_not_hide_an_array(tmp_path):
  np.savez(tmp_path / 'a.npz', **own_arrays())
  raw = bytearray((tmp_path / 'a.npz').read_bytes())
  at = raw.index(b'PK\1\2', raw.index(b'PK\1\2') + 1)  # Of the second array;
  raw[at + 33] ^= 1  # its comment now swallows the third, client.
  (tmp_path / 'a.npz').write_bytes(raw)
  assert np.load(tmp_path / 'a.npz').files == ['x', 'y']
  with pytest.raises(UserError, match=r'a\.npz is damaged .*lists 2 of 3 arrays'):
    data.load(f'npz:{tmp_path}/a.npz')


FORMS = {
  'column': (np.arange(12)[:, None] % 3, 3, None),
  'one-hot': (np.eye(4, dtype=bool)[np.arange(12) % 3], 4, None),
  'names': (np.array(['cat', 'dog', 'eel'] * 4), 3, ('cat', 'dog', 'eel')),
  'objects': (np.array(['cat', 'dog', 'eel'] * 4, object), 3, ('cat', 'dog', 'eel')),
  'bytes': (np.array([b'cat', b'dog', b'eel'] * 4), 3, ('cat', 'dog', 'eel')),
}


@pytest.mark.parametrize('form', FORMS)
def test_forms_of_labels(form, tmp_path):
  y, classes, names = FORMS[form]
  plain, _ = data.load('mine', arrays=own_arrays())
  train, test = data.load('mine', arrays=own_arrays(y=y))
  np.testing.assert_array_equal(train.y, plain.y)
  assert (train.num_classes, train.info.class_names) == (classes, names)
  prepare_data.write(tmp_path / 'a.npz', train, test)  # Names survive, too.
  assert data.load(f'npz:{tmp_path}/a.npz')[1].info.class_names == names


@pytest.mark.parametrize('partition', ['labels', 'power_law'])
def test_partitions_by_label_deal_the_labels_that_occur(partition):
  y = np.repeat([1, 2, 5], 40)  # From 1, and with a gap.
  x = np.arange(120.0)[:, None] + np.zeros(3)

  sigma = {'power_law_sigma': 0.1} if partition == 'power_law' else {}

  def load(per_client, num_clients=3):
    return data.load(
      'mine', arrays={'x': x, 'y': y}, partition=partition, num_clients=num_clients,
      labels_per_client=per_client, **sigma,
    )  # fmt: skip

  train, test = load(1)
  assert [np.unique(train.client(i)[1]).tolist() for i in range(3)] == [[1], [2], [5]]
  assert len(train.y) + len(test.y) == 120
  train, _ = load(2, num_clients=6)
  assert [len(np.unique(train.client(i)[1])) for i in range(6)] == [2] * 6
  with pytest.raises(UserError, match='more than the 3 labels of the training'):
    load(4)


def test_numbered_clients_are_in_the_order_of_their_numbers(tmp_path):
  numbers = np.repeat([30, 4, 100, 21], 3)
  for client in (numbers, pd.Series(numbers, dtype='Int64'), numbers.astype(object)):
    train, test = data.load('mine', arrays=own_arrays(client=client))
    assert train.info.names.tolist() == ['4', '21', '30', '100']
  prepare_data.write(tmp_path / 'a.npz', train, test)
  again, _ = data.load(f'npz:{tmp_path}/a.npz')
  assert again.info.names.tolist() == train.info.names.tolist()
  train, _ = data.load('mine', arrays=own_arrays(client=numbers.astype(str)))
  assert train.info.names.tolist() == ['100', '21', '30', '4']  # Texts.


def test_classes_and_clusters_that_are_numbers_as_texts_are_in_their_order(tmp_path):
  texts = np.array(['10', '2', '-1.5'] * 4)
  arrays = own_arrays(y=texts, cluster=texts, client=np.array(['a', 'b', 'c'] * 4))
  train, test = data.load('mine', arrays=arrays)
  assert train.info.class_names == ('-1.5', '2', '10')
  assert train.y.tolist() == [2] * 3 + [1] * 3 + [0] * 3
  assert train.info.clusters.tolist() == [2, 1, 0]
  assert train.info.cluster_names == ('-1.5', '2', '10')
  prepare_data.write(tmp_path / 'a.npz', train, test)
  train, _ = data.load('mine', arrays=own_arrays(y=np.array(['10', '2', 'ten'] * 4)))
  assert train.info.class_names == ('10', '2', 'ten')


def test_class_names_number_named_labels():
  y = np.array(['low', 'high', 'None'] * 4)
  names = np.array(['None', 'low', 'middle', 'high'])
  split = np.repeat([0, 1], 6)
  arrays = own_arrays(y=y, class_names=names, split=split, client=np.arange(12) % 2)
  train, _ = data.load('mine', arrays=arrays)
  assert sorted(train.y) == [0, 0, 1, 1, 3, 3]
  assert (train.num_classes, train.info.class_names) == (4, tuple(names))


def test_clusters_keep_their_numbers_as_names(tmp_path):
  cluster = np.array([10, 2, 10] * 4)
  train, test = data.load('mine', arrays=own_arrays(cluster=cluster))
  assert train.info.clusters.tolist() == [0, 1, 1]  # Of clients a, b and c.
  assert train.info.cluster_names == ('2', '10')
  prepare_data.write(tmp_path / 'a.npz', train, test)
  again, _ = data.load(f'npz:{tmp_path}/a.npz')
  assert again.info.clusters.tolist() == [0, 1, 1]
  assert again.info.cluster_names == ('2', '10')
  names = np.array(['old', 'new', 'old'] * 4, object)
  train, _ = data.load('mine', arrays=own_arrays(cluster=names))
  assert train.info.clusters.tolist() == ['new', 'old', 'old']


def test_groups_of_a_partition_keep_their_names_in_a_file(tmp_path):
  parts = data.load(
    'digits', partition='label_swapped', partition_groups=3, num_clients=6
  )
  prepare_data.write(tmp_path / 'a.npz', *parts)
  for part, again in zip(parts, data.load(f'npz:{tmp_path}/a.npz'), strict=True):
    names = np.array(part.info.cluster_names)[part.info.clusters]
    assert again.info.clusters.tolist() == names.tolist()
    changed = dataclasses.replace(again.info, clusters=names[::-1])
    with pytest.raises(UserError, match='would read back differently'):
      prepare_data.check_equal(
        tmp_path / 'a.npz', part, dataclasses.replace(again, info=changed)
      )


def test_bytes_are_names():
  client = np.array(['é'.encode(), b'a'] * 6)
  for given in (client, client.astype(object)):
    train, _ = data.load('mine', arrays=own_arrays(client=given))
    assert train.info.names.tolist() == ['a', 'é']


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'client': np.array(['a', 1] * 6, object)}, 'client mixes texts, such as row 0'),
    ({'y': np.array([*'abc' * 3, 'a', None, 'b'], object)}, 'y of row 10 is None; giv'),
    ({'x': [[1.0]] * 11 + [[1.0, 2.0]]}, 'x has rows of different shapes'),
    (
      {'y': np.ma.masked_equal(np.arange(12) % 3, 2)},
      'y is a masked array, whose mask would be lost',
    ),
  ],
)
def test_arrays_in_memory_that_mean_something_else(changes, message):
  with pytest.raises(UserError, match=message):
    data.load('mine', arrays=own_arrays(**changes))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'client': np.array(['AT', 'NA'] * 6)},
     'client has a value NA, which is taken as'),
    ({'client': np.arange(12) % 3 - 1}, 'client has a value -1, which is taken as any'),
    ({'client': None, 'split': np.repeat([0, 1], [4, 8])},
     r'split has 8 test examples .1. and only 4 training .*not swapped'),
    ({'client': np.array(['AT', 'NO'] * 6)}, None),
    ({'client': np.arange(12) % 3 - 2}, None),
    ({'client': None, 'split': np.repeat([0, 1], 6)}, None),
  ],
)  # fmt: skip
def test_notices_of_markers_and_splits(changes, message, caplog):
  warn_once.cache_clear()
  caplog.set_level('WARNING', logger='absl')
  arrays.from_arrays('mine', own_arrays(**changes))
  if message is None:
    assert not caplog.messages
  else:
    assert re.search(message, '\n'.join(caplog.messages))


@pytest.mark.parametrize(
  ('x', 'tokens'),
  [(np.arange(48).reshape(12, 4), True), (np.arange(48.0).reshape(12, 4), False),
   (np.eye(12, dtype=int), False)],
)  # fmt: skip
def test_whole_numbers_of_scale_one_are_tokens(x, tokens, tmp_path):
  pool = arrays.from_arrays('mine', own_arrays(x=x, scale=1))
  assert pool.are_tokens == tokens
  prepare_data.write(tmp_path / 'a.npz', *data.load('mine', arrays=own_arrays(x=x)))
  assert not arrays.load(tmp_path / 'a.npz').are_tokens


def test_files_that_are_no_npz_say_how_they_are_read(tmp_path):
  for name, match in {
    'a.pt': 'is no .npz file: read it in a function of your own',
    'a.PKL': 'pass its arrays as `arrays`',
    'a.npy': 'it holds one array',
    'a.csv': 'a table is `name=table:FILE`',
  }.items():
    path = tmp_path / name
    path.write_bytes(b'PK\x03\x04')
    with pytest.raises(UserError, match=match):
      data.load(f'npz:{path}')
