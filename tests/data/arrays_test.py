"""A user's own arrays load to what was saved; bad ones are named."""

import numpy as np
import pandas as pd
import pytest

from fesem_jax import data
from fesem_jax.data import arrays
from fesem_jax.utils.errors import UserError
from tests.support.sources import own_arrays


@pytest.mark.parametrize('compress', [False, True])
def test_a_flipped_byte_is_an_error_or_harmless(tmp_path, compress):
  save = np.savez_compressed if compress else np.savez
  save(tmp_path / 'mine.npz', **own_arrays())
  whole = (tmp_path / 'mine.npz').read_bytes()
  rng = np.random.default_rng(0)
  refused = 0
  for at in rng.choice(len(whole), 200, replace=False):
    broken = bytearray(whole)
    broken[at] ^= 1 << rng.integers(8)
    (tmp_path / 'broken.npz').write_bytes(broken)
    try:
      data.load(f'npz:{tmp_path}/broken.npz')
    except (ValueError, KeyError, IndexError):
      refused += 1
  assert refused > 50


def test_numbered_clients_and_named_clusters_survive_conversion(tmp_path):
  cluster = np.where(np.arange(24) % 12 < 6, 'old', 'young')
  x = np.arange(48, dtype=np.float32).reshape(24, 2)
  client = np.arange(24) % 12
  np.savez(tmp_path / 'a.npz', x=x, y=client % 2, client=client, cluster=cluster)
  train, test = data.load(f'npz:{tmp_path}/a.npz')
  (tmp_path / 'new').mkdir()
  arrays.save(tmp_path / 'new' / 'b.npz', train, test)
  again = data.load(f'npz:{tmp_path}/new/b.npz')
  for one, other in zip((train, test), again, strict=True):
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.info.names, other.info.names)
    np.testing.assert_array_equal(one.info.clusters, other.info.clusters)
    # Clusters that have names keep them.
    want = ['old' if int(name) < 6 else 'young' for name in one.info.names]
    assert other.info.clusters.tolist() == want
  assert [p.name for p in (tmp_path / 'new').iterdir()] == ['b.npz']


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
    ({'y': np.zeros(5, int)}, 'y has 5 rows'),
    ({'y': np.arange(12) - 1}, 'y: labels'),
    ({'y': np.arange(12) / 2}, 'y: labels'),
    ({'y': np.zeros((12, 3), int)}, 'y: labels'),
    ({'y': np.arange(12) + 2**31}, 'y: 2147483659'),
    ({'y': np.array(['a', ' '] * 6)}, 'y of row 1'),
    ({'num_classes': np.array(2)}, 'y: 2 is not in'),
    ({'x': np.ones((12, 4), np.uint8)}, 'scale'),
    ({'x': np.array([['a']] * 12)}, 'x is <U1'),
    ({'x': np.full((12, 2), 1e300)}, 'row 0 of x'),
    ({'split': np.full(12, 2)}, 'split must hold 0'),
    ({'client': np.r_[np.zeros(11), np.inf]}, 'client of row 11'),
    ({'client': np.array([0, 'NaT'], 'M8[s]').repeat(6)}, 'client of row 6'),
    ({'cluster': np.arange(12)}, 'several clusters'),
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
  with pytest.raises(UserError, match=f'{name} of row 3'):
    data.load('mine', arrays=own_arrays(**{name: column}))


def test_pickled_objects_are_never_unpickled(tmp_path):
  class Trap:
    def __reduce__(self):
      return (tmp_path.joinpath('sprung').touch, ())

  objects = np.array([Trap()] * 12, object)
  np.savez(tmp_path / 'mine.npz', **own_arrays(client=objects))
  with pytest.raises(UserError, match='allow_pickle=False'):
    data.load(f'npz:{tmp_path}/mine.npz')
  assert not (tmp_path / 'sprung').exists()
  (tmp_path / 'cut.npz').write_bytes((tmp_path / 'mine.npz').read_bytes()[:200])
  with pytest.raises(UserError, match=r'cut\.npz is damaged'):
    data.load(f'npz:{tmp_path}/cut.npz')


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
  arrays.save(tmp_path / 'a.npz', train, test)  # Names survive, too.
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
  arrays.save(tmp_path / 'a.npz', train, test)
  again, _ = data.load(f'npz:{tmp_path}/a.npz')
  assert again.info.names.tolist() == train.info.names.tolist()
  train, _ = data.load('mine', arrays=own_arrays(client=numbers.astype(str)))
  assert train.info.names.tolist() == ['100', '21', '30', '4']  # Texts.


def test_classes_and_clusters_that_are_numbers_as_texts_are_in_their_order(tmp_path):
  texts = np.array(['10', '2', '-1.5'] * 4)
  own = own_arrays(y=texts, cluster=texts, client=np.array(['a', 'b', 'c'] * 4))
  train, test = data.load('mine', arrays=own)
  assert train.info.class_names == ('-1.5', '2', '10')
  assert train.y.tolist() == [2] * 3 + [1] * 3 + [0] * 3
  assert train.info.clusters.tolist() == [2, 1, 0]
  assert train.info.cluster_names == ('-1.5', '2', '10')
  arrays.save(tmp_path / 'a.npz', train, test)
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
  arrays.save(tmp_path / 'a.npz', train, test)
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
  arrays.save(tmp_path / 'a.npz', *parts)
  for part, again in zip(parts, data.load(f'npz:{tmp_path}/a.npz'), strict=True):
    names = np.array(part.info.cluster_names)[part.info.clusters]
    assert again.info.clusters.tolist() == names.tolist()


def test_bytes_are_names():
  client = np.array(['é'.encode(), b'a'] * 6)
  for given in (client, client.astype(object)):
    train, _ = data.load('mine', arrays=own_arrays(client=given))
    assert train.info.names.tolist() == ['a', 'é']


@pytest.mark.parametrize(
  ('x', 'tokens'),
  [(np.arange(48).reshape(12, 4), True), (np.arange(48.0).reshape(12, 4), False),
   (np.eye(12, dtype=int), False)],
)  # fmt: skip
def test_whole_numbers_of_scale_one_are_tokens(x, tokens, tmp_path):
  pool = arrays.from_arrays('mine', own_arrays(x=x, scale=1))
  assert pool.are_tokens == tokens
  arrays.save(tmp_path / 'a.npz', *data.load('mine', arrays=own_arrays(x=x)))
  assert not arrays.load(tmp_path / 'a.npz').are_tokens
