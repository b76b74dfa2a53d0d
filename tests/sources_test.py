"""Files in every source's format load to the same data; bad ones are named."""

import gzip
import io
import json
import sqlite3
import zlib

import h5py
import msgpack
import numpy as np
import pytest
from PIL import Image

from experiments import prepare_data
from fesem_jax import bounded, data
from fesem_jax.data import cache as cache_module
from fesem_jax.data import celeba, json_reader, leaf, skew
from fesem_jax.data.json_reader import JsonReader
from fesem_jax.errors import UserError

WRITERS = {'f0001_10': (3, 2), 'f0000_14': (5, 1), 'f0002_03': (2, 2)}


def writers(seed=0):
  """Name -> ((train images, labels), (test images, labels)) of a tiny FEMNIST."""
  rng = np.random.default_rng(seed)
  draw = lambda n: (
    rng.integers(0, 256, (n, 28, 28)).astype(np.uint8),
    rng.integers(0, 62, n),
  )
  return {name: (draw(a), draw(b)) for name, (a, b) in WRITERS.items()}


def leaf_block(x, y):
  return {'x': (x.reshape(len(x), 784) / 255).tolist(), 'y': y.tolist()}


def write_leaf(folder, clients, shards=1, zipped=False, order=1, **extra):
  """LEAF's layout: users dealt to shards, in either order."""
  for part, split in enumerate(('train', 'test')):
    (folder / split).mkdir(parents=True, exist_ok=True)
    names = list(clients)[::order]
    for k in range(shards):
      mine = names[k::shards]
      content = {
        'users': mine,
        'num_samples': [len(clients[n][part][1]) for n in mine],
        'user_data': {n: leaf_block(*clients[n][part]) for n in mine},
      } | extra
      text = json.dumps(content)
      path = folder / split / f'all_data_{k}_niid_0_keep_0_{split}_8.json'
      if zipped:
        path.with_name(path.name + '.gz').write_bytes(gzip.compress(text.encode()))
      else:
        path.write_text(text)


def write_hdf5(folder, clients):
  folder.mkdir(parents=True)
  for part, split in enumerate(('train', 'test')):
    with h5py.File(folder / f'fed_emnist_{split}.h5', 'w') as f:
      for name, splits in clients.items():
        x, y = splits[part]
        group = f.create_group(f'examples/{name}')
        group['pixels'] = (x / 255).astype(np.float32)
        group['label'] = y.astype(np.int32)


def write_tff_sqlite(folder, clients):
  from tensorflow_datasets.proto import tf_example_pb2

  folder.mkdir(parents=True)
  db = sqlite3.connect(folder / 'emnist_all.sqlite')
  db.execute('CREATE TABLE client_metadata (client_id, split_name, num_examples)')
  db.execute('CREATE TABLE examples (split_name, client_id, serialized_example_proto)')
  for part, split in enumerate(('train', 'test')):
    for name, splits in clients.items():
      count = len(splits[part][1])
      row = (name, f'all_{split}', count)
      db.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', row)
      for x, y in zip(*splits[part], strict=True):
        example = tf_example_pb2.Example()
        pixels = (x.ravel() / 255).astype(np.float32)
        example.features.feature['pixels'].float_list.value.extend(pixels)
        example.features.feature['label'].int64_list.value.append(int(y))
        row = (f'all_{split}', name, example.SerializeToString())
        db.execute('INSERT INTO examples VALUES (?, ?, ?)', row)
  db.commit()
  db.close()


def packed(array):
  parts = (array.shape, array.dtype.name, array.tobytes())
  return msgpack.ExtType(1, msgpack.packb(parts, use_bin_type=True))


def write_fedjax(folder, clients, table='federated_data'):
  folder.mkdir(parents=True)
  for part, split in enumerate(('train', 'test')):
    db = sqlite3.connect(folder / f'federated_emnist_{split}.sqlite')
    db.execute(
      f'CREATE TABLE {table} (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT '
      'NULL, num_examples INTEGER NOT NULL)'
    )
    for name, splits in clients.items():
      x, y = splits[part]
      content = {
        'pixels': packed((x / 255).astype(np.float32)),
        'label': packed(y.astype(np.int32)),
      }
      blob = zlib.compress(msgpack.packb(content))
      row = (name.encode(), blob, len(y))
      db.execute(f'INSERT INTO {table} VALUES (?, ?, ?)', row)
    db.commit()
    db.close()


def write_hub(folder, clients):
  """The hub's Parquet shape; it has no split, so both parts go to one."""
  datasets = pytest.importorskip('datasets')
  rows = [
    (Image.fromarray(x), name, int(y))
    for name, splits in clients.items()
    for part in splits
    for x, y in zip(*part, strict=True)
  ]
  features = datasets.Features({
    'image': datasets.Image(), 'writer_id': datasets.Value('string'),
    'character': datasets.ClassLabel(num_classes=62),
  })  # fmt: skip
  images, names, labels = zip(*rows, strict=True)
  columns = {'image': images, 'writer_id': names, 'character': labels}
  held = datasets.Dataset.from_dict(
    {k: list(v) for k, v in columns.items()}, features=features
  )
  (folder / 'data').mkdir(parents=True)
  held.to_parquet(folder / 'data' / 'train-00000-of-00001.parquet')


def write_hub_celeba(folder):
  datasets = pytest.importorskip('datasets')
  rng = np.random.default_rng(0)
  draw = lambda: Image.fromarray(rng.integers(0, 256, (218, 178, 3)).astype(np.uint8))
  features = datasets.Features({
    'image': datasets.Image(), 'celeb_id': datasets.Value('int64'),
    'Smiling': datasets.Value('bool'), 'Young': datasets.Value('bool'),
  })  # fmt: skip
  (folder / 'img_align+identity+attr').mkdir(parents=True)
  for split, people in (('train', [7, 12]), ('test', [3])):
    who = np.repeat(people, 6).tolist()
    columns = {
      'image': [draw() for _ in who],
      'celeb_id': who,
      'Smiling': [i % 2 == 0 for i in range(len(who))],
      'Young': [True] * len(who),
    }
    held = datasets.Dataset.from_dict(columns, features=features)
    held.to_parquet(folder / 'img_align+identity+attr' / f'{split}-00000-of-1.parquet')


def test_celeba_of_the_hub_pools_its_splits(tmp_path):
  write_hub_celeba(tmp_path / 'flwrlabs' / 'celeba')
  train, test = data.load('celeba', data_dir=tmp_path)
  assert train.info.names.tolist() == ['12', '3', '7']
  assert train.x.shape == (15, 84, 84, 3)
  assert np.asarray(test.sizes()).tolist() == [1, 1, 1]
  assert train.num_classes == 2
  both = np.concatenate([train.y, test.y])
  assert sorted(both.tolist()) == [0] * 9 + [1] * 9


def contents(split):
  """Name -> (images, labels)."""
  return {str(n): split.client(i) for i, n in enumerate(split.info.names)}


def assert_same(split, wanted):
  got = contents(split)
  assert sorted(got) == sorted(wanted)
  for name, (x, y) in wanted.items():
    np.testing.assert_array_equal(got[name][0], x)
    np.testing.assert_array_equal(got[name][1], y)


FEMNIST = {
  'leaf': (lambda d, c: write_leaf(d / 'leaf_femnist', c), 'leaf'),
  'hdf5': (lambda d, c: write_hdf5(d / 'tff_femnist', c), 'tff'),
  'tff sqlite': (lambda d, c: write_tff_sqlite(d / 'tff_femnist', c), 'tff'),
  'fedjax sqlite': (lambda d, c: write_fedjax(d / 'tff_femnist', c), 'tff'),
}


@pytest.mark.parametrize('shape', FEMNIST)
def test_every_shape_of_femnist_loads_to_the_same_data(tmp_path, shape):
  write, source = FEMNIST[shape]
  clients = writers()
  write(tmp_path, clients)
  for chosen in ('', source):
    train, test = data.load('femnist', data_dir=tmp_path, source=chosen)
    assert train.info.names.tolist() == sorted(WRITERS)
    assert (train.num_classes, train.scale) == (62, 1 / 255)
    assert_same(train, {n: a for n, (a, _) in clients.items()})
    assert_same(test, {n: b for n, (_, b) in clients.items()})
  black, _ = data.load('femnist', data_dir=tmp_path, background='black')
  np.testing.assert_array_equal(black.x, 255 - train.x)


def test_femnist_of_the_hub_is_split_80_20(tmp_path):
  clients = writers()
  write_hub(tmp_path / 'flwrlabs' / 'femnist', clients)
  train, test = data.load('femnist', data_dir=tmp_path)
  assert train.num_classes == 62
  for name, (x, y) in contents(train).items():
    rest = contents(test)[name]
    whole = [*zip(x, y, strict=True), *zip(*rest, strict=True)]
    have = sorted((a.tobytes(), int(b)) for a, b in whole)
    want = [pair for part in clients[name] for pair in zip(*part, strict=True)]
    assert have == sorted((a.tobytes(), int(b)) for a, b in want)
    assert len(rest[1]) == max(1, round(0.2 * len(want)))


def test_any_hub_set_by_its_columns(tmp_path):
  write_hub(tmp_path / 'me' / 'mine', writers())
  options = {'data_dir': tmp_path, 'hub_name': 'me/mine'}
  train, _ = data.load('hub', hub_client_column='writer_id', **options)
  assert train.info.names.tolist() == sorted(WRITERS)
  with pytest.raises(UserError, match='`hub_client_column=writer` is not among'):
    data.load('hub', hub_client_column='writer', **options)
  with pytest.raises(UserError, match='has the splits train; without `hub_client'):
    data.load('hub', **options)
  with pytest.raises(UserError, match='`hub_label_column=y` is not among'):
    data.load('hub', hub_client_column='writer_id', hub_label_column='y', **options)


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
  every = lambda part: sorted(
    x.tobytes() for splits in clients.values() for x in splits[part][0]
  )
  assert sorted(x.tobytes() for x in train.x) == every(0)
  assert sorted(x.tobytes() for x in test.x) == every(1)


def break_leaf(change):
  """A LEAF folder in which the first training shard is changed."""

  def write(folder):
    write_leaf(folder / 'leaf_femnist', writers(), shards=2)
    path = sorted((folder / 'leaf_femnist' / 'train').iterdir())[0]
    content = json.loads(path.read_text())
    changed = change(content, path)
    path.write_text(changed if isinstance(changed, str) else json.dumps(content))

  return write


def change_user(**entries):
  return break_leaf(lambda c, _: c['user_data'][c['users'][0]].update(entries))


def wrong_count(content, path):
  content['num_samples'][0] += 1


def lose_user(content, path):
  del content['user_data'][content['users'][0]]


def hide_user(content, path):
  content['users'].pop(0)
  content['num_samples'].pop(0)


def repeat_user(content, path):
  content['users'].append(content['users'][0])
  content['num_samples'].append(3)


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
    (break_leaf(lambda c, _: json.dumps(c)[:-900]), 'all_data_0.*is not whole JSON'),
    (break_leaf(lambda c, _: json.dumps(c)[:30]), 'all_data_0.*is not whole JSON'),
    (break_leaf(lambda c, _: '[1, 2]'), 'users and num_samples must be lists'),
    (break_leaf(wrong_count), '3 examples and 3 labels, but num_samples says 4'),
    (break_leaf(lose_user), 'all_data_0.*user_data lacks user f0001_10'),
    (break_leaf(hide_user), 'user f0001_10: user_data holds the user, but users'),
    (break_leaf(repeat_user), 'user f0001_10: listed twice'),
    (break_leaf(duplicate_across_shards), 'user f0000_14: the user is also in .*_0'),
    (break_leaf(drop_from_training), 'leaf_femnist: f0001_10 has test examples but no'),
    (change_user(x=[['a'] * 784] * 3), 'user f0001_10: pixels that are not numbers'),
    (change_user(x=[[None] * 784] * 3), 'user f0001_10: pixels that are not numbers'),
    (change_user(x=ONE[:, :5].tolist()), r'images of \(5,\) pixels; FEMNIST has 784'),
    (change_user(x=[[1.0], [1.0, 0.5], [0]]), 'pixels of different lengths'),
    (change_user(x=(ONE * 9).tolist()), 'pixels from 9 to 9; they must lie between'),
    (change_user(y=[1, 62, 0]), r'label 62 is not in 0\.\.61'),
    (change_user(y=[1, 0.5, 0]), 'labels must be whole numbers'),
    (change_user(y=[1, -1, 0]), 'labels must be whole numbers from 0'),
    (change_user(y=['a', 'b', 'c']), 'labels that are not numbers'),
    (change_user(y=[1, 0]), '3 examples and 2 labels'),
  ],
)  # fmt: skip
def test_bad_leaf_files_are_named(tmp_path, write, message):
  write(tmp_path)
  with pytest.raises(UserError, match=message):
    data.load('femnist', data_dir=tmp_path)


def one_user(users='["a"]', num_samples='[1]', x='[[1]]', y='[1]', more=''):
  return (
    f'{{"users": {users}, "num_samples": {num_samples}, {more}'
    f'"user_data": {{"a": {{"x": {x}, "y": {y}}}}}}}'
  )


LONG = 'holds a number or string of more than 2,000 characters'
DEEP = 'holds brackets nested more than 32 deep'


BRACKETS = '[' * 50_000 + ']' * 50_000
BRACES = '{"a":' * 50_000 + '1' + '}' * 50_000
NO_FEATURES = 'which holds no features'
TWICE = json.dumps([*map(str, range(50_000)), '49999'])
HOSTILE = {
  'digits in users': (one_user(users=f'[{"1" * 5000}]'), LONG),
  'digits in num_samples': (one_user(num_samples=f'[{"1" * 5000}]'), LONG),
  'digits in x': (one_user(x=f'[[{"1" * 5000}]]'), LONG),
  'digits in y': (one_user(y=f'[0.{"1" * 5000}]'), LONG),
  'a string of 10 MB': (one_user(users=f'["{"a" * 10**7}"]'), LONG),
  'a string of commas': (one_user(x=f'[["{"a, " * 10**6}"]]'), LONG),
  'brackets in x': (one_user(x=BRACKETS), DEEP),
  'brackets in users': (one_user(users=BRACKETS), DEEP),
  'braces': (one_user(more=f'"z": {BRACES},'), DEEP),
  'a stray byte': (one_user(users='["\udc80"]'), r'is not whole JSON \(lexical error'),
  'a surrogate': (one_user(users='["\udced\udca0\udc80"]'), 'a.json is damaged or not'),
  'x without features': (one_user(x='[1]'), NO_FEATURES),
  'empty x': (one_user(x='[[]]'), NO_FEATURES),
  'a user twice': (one_user(TWICE, str([1] * 50_001)), 'user 49999: listed twice'),
}  # fmt: skip


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_json_is_refused(tmp_path, name):
  text, message = HOSTILE[name]
  for split in ('train', 'test'):
    (tmp_path / split).mkdir()
    path = tmp_path / split / 'a.json'
    path.write_bytes(text.encode('utf-8', 'surrogateescape'))
  with pytest.raises(UserError, match=message) as caught:
    data.load(f'leaf:{tmp_path}')
  assert len(str(caught.value)) < 1000


@pytest.mark.parametrize('size', [1, 2, 3, 7, 64, 2**20])
def test_bounds_on_json_do_not_depend_on_how_it_is_read(tmp_path, size):
  """Strings, escapes and brackets may be cut anywhere."""
  path = tmp_path / 'a.json'

  def read(content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with JsonReader(path) as f:
      return b''.join(iter(lambda: f.read(size), b''))

  names = ['[[[[' * 20, 'a"[' * 20, '\\', '\\\\"', '{' * 40, '\\"' * 9, ', ]', 'é[']
  everything = {name: [name, [1.5, -2e-7], {name: names}] for name in names}
  assert json.loads(read([everything] * 3)) == [everything] * 3
  spaced = '[1,' + ' ' * 10_000 + '2]'
  assert read(spaced).decode() == spaced
  deep = lambda n: '[' * n + '"]"' + ']' * n
  assert read(deep(json_reader.MAX_DEPTH)).decode() == deep(json_reader.MAX_DEPTH)
  with pytest.raises(UserError, match=DEEP):
    read(deep(json_reader.MAX_DEPTH + 1))
  most = json_reader.MAX_TOKEN
  if size > most:
    assert read(['a' * most, int('1' * most)])
    for token in ('1' * (most + 1), f'"{"a" * (most + 1)}"'):
      for text in (f'[1, {token}, 2]', f'[{token}', token):
        with pytest.raises(UserError, match=LONG):
          read(text)


def change_features(folder, x):
  write_leaf(folder, writers())
  break_leaf(lambda c, _: c['user_data']['f0001_10'].update(x=x))(folder / 'other')
  (folder / 'train').rename(folder / 'old')
  (folder / 'other' / 'leaf_femnist' / 'train').rename(folder / 'train')


def test_users_whose_features_differ_in_shape_are_named(tmp_path):
  change_features(tmp_path, [[1], [2], [3]])
  with pytest.raises(UserError, match=r'examples of f0001_10 have shape \(1,\), those'):
    data.load(f'leaf:{tmp_path}')


def test_features_beyond_float32_are_named(tmp_path):
  change_features(tmp_path, (ONE * 1e300).tolist())
  with pytest.raises(UserError, match='user f0001_10: features that do not fit'):
    data.load(f'leaf:{tmp_path}')


def test_an_empty_test_split_is_named(tmp_path):
  empty = {name: (train, (test[0][:0], test[1][:0])) for name, (train, test) in
           writers().items()}  # fmt: skip
  write_leaf(tmp_path / 'leaf_femnist', empty)
  with pytest.raises(UserError, match='leaf_femnist holds no test examples'):
    data.load('femnist', data_dir=tmp_path)
  write_hdf5(tmp_path / 'tff_femnist', empty)
  with pytest.raises(UserError, match='tff_femnist holds no test examples'):
    data.load('femnist', data_dir=tmp_path, source='tff')


def test_nothing_outside_of_the_files_is_read(tmp_path):
  write_hdf5(tmp_path / 'tff_femnist', writers())
  write_hdf5(tmp_path / 'elsewhere', writers(seed=1))
  path = tmp_path / 'tff_femnist' / 'fed_emnist_train.h5'
  with h5py.File(path, 'a') as f:
    del f['examples/f0001_10']
    f['examples/f0001_10'] = h5py.ExternalLink(
      str(tmp_path / 'elsewhere' / 'fed_emnist_train.h5'), '/examples/f0001_10'
    )
  with pytest.raises(UserError, match='examples/f0001_10: a link elsewhere; it is re'):
    data.load('femnist', data_dir=tmp_path)
  datasets = pytest.importorskip('datasets')
  import pyarrow.parquet

  secret = tmp_path / 'secret.png'
  Image.fromarray(np.full((28, 28), 77, np.uint8)).save(secret)
  features = datasets.Features({
    'image': datasets.Image(), 'label': datasets.ClassLabel(num_classes=2),
    'who': datasets.Value('string'),
  })  # fmt: skip
  held = datasets.Dataset.from_dict(
    {'image': [str(secret)] * 4, 'label': [0, 1] * 2, 'who': ['a', 'b'] * 2},
    features=features,
  )
  (tmp_path / 'me' / 'mine').mkdir(parents=True)
  table = held.data.table  # As it is; `save_to_disk` would embed the image.
  pyarrow.parquet.write_table(table, tmp_path / 'me' / 'mine' / 'train.parquet')
  with pytest.raises(UserError, match='image 0 is a path to a file elsewhere'):
    data.load('hub', data_dir=tmp_path, hub_name='me/mine', hub_client_column='who')


@pytest.mark.parametrize(
  ('mode', 'shade', 'wanted'), [('1', 1, 255), ('L', 200, 200), ('I;16', 40000, None)]
)
def test_hub_images_of_other_modes(tmp_path, mode, shade, wanted):
  datasets = pytest.importorskip('datasets')
  image = io.BytesIO()
  Image.new(mode, (8, 8), shade).save(image, 'png')
  features = datasets.Features({
    'image': datasets.Image(), 'label': datasets.Value('int64'),
    'who': datasets.Value('string'),
  })  # fmt: skip
  columns = {
    'image': [{'bytes': image.getvalue(), 'path': None}] * 4,
    'label': [0, 1, 1, 0],
    'who': ['a', 'a', 'b', 'b'],
  }
  held = datasets.Dataset.from_dict(columns, features=features)
  held.save_to_disk(str(tmp_path / 'me' / 'mine'))
  options = {
    'data_dir': tmp_path, 'hub_name': 'me/mine', 'hub_client_column': 'who',
    'hub_label_column': 'label',
  }  # fmt: skip
  if wanted is None:
    with pytest.raises(UserError, match='has mode I;16; 8-bit images are needed'):
      data.load('hub', **options)
    return
  train, _ = data.load('hub', **options)
  assert train.x.dtype == np.uint8
  assert train.x.shape == (2, 8, 8)
  assert (train.x == wanted).all()


def test_tff_ids_and_counts_are_checked(tmp_path):
  write_tff_sqlite(tmp_path / 'tff_femnist', writers())
  db = sqlite3.connect(tmp_path / 'tff_femnist' / 'emnist_all.sqlite')
  db.execute("UPDATE examples SET client_id = NULL WHERE client_id = 'f0000_14'")
  db.commit()
  with pytest.raises(UserError, match='client None: not in client_metadata'):
    data.load('femnist', data_dir=tmp_path)
  db.execute("UPDATE examples SET client_id = 'f0001_10' WHERE client_id IS NULL")
  db.commit()
  db.close()
  with pytest.raises(UserError, match='client f0001_10: 8 examples where 3 are ann'):
    data.load('femnist', data_dir=tmp_path)


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
  assert [p.name for p in (tmp_path / 'new').iterdir()] == ['b.npz']
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match=r'Cannot write --output=.*File exists'):
    prepare_data.write(tmp_path / 'file' / 'b.npz', train, test)


def test_a_cap_on_examples_draws_at_random(tmp_path):
  y = np.repeat(np.arange(4), 10)
  split = np.tile([0] * 9 + [1], 4)
  x = np.zeros((40, 2), np.float32)
  np.savez(tmp_path / 'a.npz', x=x, y=y, client=np.zeros(40), split=split)
  train, _ = data.load(f'npz:{tmp_path}/a.npz', examples_per_client=12)
  assert len(train.y) == 12
  assert len(np.unique(train.y)) == 4


def test_entries_without_x_are_named(tmp_path):
  break_leaf(lambda c, _: c['user_data'].update(f0001_10={'y': [1]}))(tmp_path)
  with pytest.raises(UserError, match='user f0001_10: the entry has no lists x and y'):
    data.load('femnist', data_dir=tmp_path)


def test_an_hdf5_array_that_is_announced_but_not_there_is_refused(tmp_path):
  write_hdf5(tmp_path / 'tff_femnist', writers())
  with h5py.File(tmp_path / 'tff_femnist' / 'fed_emnist_train.h5', 'a') as f:
    del f['examples/f0001_10/pixels']
    shape = (10**8, 28, 28)  # Without chunks that are written, it takes no space.
    f['examples/f0001_10'].create_dataset('pixels', shape, np.float32, chunks=True)
  with pytest.raises(UserError, match=r'train\.h5 expands to 299072 MiB, over 200'):
    data.load('femnist', data_dir=tmp_path)


def test_bombs_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(bounded, 'MAX_EXPANDED_BYTES', 1000)
  path = tmp_path / 'train' / 'a.json.gz'
  path.parent.mkdir()
  (tmp_path / 'test').mkdir()
  bomb = gzip.compress(b'{"users": [' + b' ' * 10**7)
  path.write_bytes(bomb)
  (tmp_path / 'test' / 'a.json.gz').write_bytes(bomb)
  with pytest.raises(UserError, match=r'a\.json\.gz expands to more than'):
    data.load(f'leaf:{tmp_path}')
  np.savez_compressed(tmp_path / 'b.npz', x=np.zeros(10**7), y=[0], client=[0])
  with pytest.raises(UserError, match=r'b\.npz expands to 76 MiB, over 200 times'):
    data.load(f'npz:{tmp_path}/b.npz')


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """The folder of cached arrays, for data of any size."""
  monkeypatch.setattr(cache_module, 'MIN_CACHED_BYTES', 0)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  return tmp_path / 'home' / 'fesem_jax' / 'data'


@pytest.fixture
def parsed(monkeypatch):
  """One entry for each LEAF split that is parsed."""
  entries = []
  read = leaf.read_clients
  monkeypatch.setattr(leaf, 'read_clients', lambda *a: entries.append(1) or read(*a))
  return entries


def test_a_large_set_is_cached_by_content(tmp_path, cache, parsed):
  folder = tmp_path / 'leaf_femnist'
  write_leaf(folder, writers())
  first, _ = data.load('femnist', data_dir=tmp_path)
  assert parsed
  assert sorted(p.name for p in folder.iterdir()) == ['test', 'train']
  (kept,) = cache.iterdir()
  assert cache.stat().st_mode & 0o777 == 0o700
  parsed.clear()
  again, _ = data.load('femnist', data_dir=tmp_path)
  assert not parsed
  np.testing.assert_array_equal(first.x, again.x)
  write_leaf(folder, writers(seed=1))
  changed, _ = data.load('femnist', data_dir=tmp_path)
  assert parsed
  assert not np.array_equal(first.x, changed.x)
  assert list(cache.iterdir()) == [kept]
  kept.write_bytes(b'PK\x03\x04 cut short')
  parsed.clear()
  mended, _ = data.load('femnist', data_dir=tmp_path)
  assert parsed
  np.testing.assert_array_equal(changed.x, mended.x)


def test_data_sets_of_one_folder_keep_caches_of_their_own(tmp_path, cache, parsed):
  folder = tmp_path / 'leaf_femnist'
  write_leaf(folder, writers())
  images, _ = data.load('femnist', data_dir=tmp_path)
  rows, _ = data.load(f'leaf:{folder}')
  parsed.clear()
  again, _ = data.load('femnist', data_dir=tmp_path)
  np.testing.assert_array_equal(images.x, again.x)
  again, _ = data.load(f'leaf:{tmp_path}/leaf_femnist/../leaf_femnist')
  np.testing.assert_array_equal(rows.x, again.x)
  assert not parsed


def test_what_is_planted_beside_data_is_neither_trusted_nor_followed(tmp_path, cache):
  folder = tmp_path / 'leaf_femnist'
  write_leaf(folder, writers())
  first, _ = data.load('femnist', data_dir=tmp_path)
  (kept,) = cache.iterdir()
  forged = dict(np.load(kept))
  forged['x'] = np.zeros_like(forged['x'])
  np.savez(folder / '.fesem_jax_cache.npz', **forged)
  mine = tmp_path / 'mine.txt'
  mine.write_text('precious')
  (folder / '.partial..fesem_jax_cache.npz').symlink_to(mine)
  kept.unlink()
  again, _ = data.load('femnist', data_dir=tmp_path)
  np.testing.assert_array_equal(first.x, again.x)
  assert mine.read_text() == 'precious'


@pytest.mark.parametrize('kind', ['link', 'open to all', 'file'])
def test_a_cache_folder_that_others_may_change_is_not_used(tmp_path, cache, kind):
  cache.parent.mkdir(parents=True)
  theirs = tmp_path / 'theirs'
  theirs.mkdir()
  if kind == 'link':
    cache.symlink_to(theirs)
  elif kind == 'file':
    cache.touch()
  else:
    cache.mkdir()
    cache.chmod(0o777)
  write_leaf(tmp_path / 'leaf_femnist', writers())
  train, _ = data.load('femnist', data_dir=tmp_path)
  assert_same(train, {n: a for n, (a, _) in writers().items()})
  assert not list(theirs.iterdir())
  assert kind == 'file' or not list(cache.iterdir())


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('hdf5 without the group', 'has no group examples'),
    ('hdf5 cut short', r'train\.h5 is damaged or not what it should be'),
    ('hdf5 of another shape', r'client f0001_10: pixels of shape \(3, 14, 14\)'),
    ('sqlite without the table', 'has no table federated_data'),
    ('sqlite that is none', r'train\.sqlite is damaged or not what it should be'),
    ('sqlite row', "client b'f0001_10' is damaged or not what it should be"),
    ('nothing', 'must hold fed_emnist_train.h5 and fed_emnist_test.h5, or'),
  ],
)
def test_bad_tff_files_are_named(tmp_path, name, message):
  folder = tmp_path / 'tff_femnist'
  if name.startswith('hdf5'):
    write_hdf5(folder, writers())
    path = folder / 'fed_emnist_train.h5'
    if 'group' in name:
      with h5py.File(path, 'w') as f:
        f['other'] = 1
    elif 'short' in name:
      path.write_bytes(path.read_bytes()[:500])
    else:
      with h5py.File(path, 'a') as f:
        del f['examples/f0001_10/pixels']
        f['examples/f0001_10/pixels'] = np.zeros((3, 14, 14), np.float32)
  elif name == 'nothing':
    folder.mkdir(parents=True)
  else:
    write_fedjax(folder, writers(), 'other' if 'table' in name else 'federated_data')
    path = folder / 'federated_emnist_train.sqlite'
    if 'none' in name:
      path.write_bytes(b'not a database' * 100)
    elif 'row' in name:
      db = sqlite3.connect(path)
      db.execute("UPDATE federated_data SET data = x'00' WHERE num_examples = 3")
      db.commit()
      db.close()
  with pytest.raises(UserError, match=message):
    data.load('femnist', data_dir=tmp_path)


def faces(folder, where='img_align_celeba'):
  """Celebrity -> image names, with labels by image; someone has too few."""
  rng = np.random.default_rng(0)
  people = {'12': 5, '7': 6, '99': 4}
  names, smiles, at = {}, {}, 1
  (folder / where).mkdir(parents=True)
  for person, count in people.items():
    names[person] = [f'{at + i:06d}.jpg' for i in range(count)]
    at += count
    for name in names[person]:
      smiles[name] = int(rng.integers(0, 2))
      image = Image.fromarray(rng.integers(0, 256, (218, 178, 3)).astype(np.uint8))
      image.save(folder / where / name)
  return names, smiles


def write_original(folder):
  names, smiles = faces(folder)
  lines = [f'{n} {p}' for p, theirs in names.items() for n in theirs]
  (folder / 'identity_CelebA.txt').write_text('\n'.join(sorted(lines, reverse=True)))
  rows = [f'{n} -1 {2 * s - 1}  1' for n, s in smiles.items()]
  text = '\n'.join([str(len(rows)), 'Bald Smiling Young', *rows])
  (folder / 'list_attr_celeba.txt').write_text(text + '\n')
  return names, smiles


def test_original_celeba(tmp_path):
  folder = tmp_path / 'celeba'
  names, smiles = write_original(folder)
  train, test = data.load('celeba', data_dir=tmp_path)
  assert train.info.names.tolist() == ['12', '7']  # 99 has four images only.
  assert train.x.shape[1:] == (84, 84, 3)
  assert train.num_classes == 2
  assert np.asarray(train.sizes()).tolist() == [4, 5]
  wanted = {}
  for name in names['12']:
    with Image.open(folder / 'img_align_celeba' / name) as image:
      wanted[celeba.resize(image).tobytes()] = smiles[name]
  for split in (train, test):
    for x, y in zip(*split.client(0), strict=True):
      assert wanted.pop(x.tobytes()) == y
  assert not wanted


def write_leaf_celeba(folder):
  names, smiles = faces(folder, 'raw/img_align_celeba')
  for split, part in (('train', slice(0, 4)), ('test', slice(4, None))):
    mine = {p: theirs[part] for p, theirs in names.items() if theirs[part]}
    content = {
      'users': list(mine),
      'num_samples': [len(theirs) for theirs in mine.values()],
      'user_data': {
        p: {'x': theirs, 'y': [float(smiles[n]) for n in theirs]}
        for p, theirs in mine.items()
      },
    }
    (folder / split).mkdir()
    (folder / split / 'all_data.json').write_text(json.dumps(content))
  return names, smiles


def test_leaf_celeba(tmp_path):
  folder = tmp_path / 'leaf_celeba'
  names, smiles = write_leaf_celeba(folder)
  train, test = data.load('celeba', data_dir=tmp_path)
  assert np.asarray(train.sizes()).tolist() == [4, 4, 4]
  assert np.asarray(test.sizes()).tolist() == [1, 2, 0]
  np.testing.assert_array_equal(
    train.client(0)[1], [smiles[n] for n in names['12'][:4]]
  )
  path = folder / 'train' / 'all_data.json'
  text = path.read_text()
  path.write_text(text.replace(names['12'][0], '../../secret.jpg'))
  with pytest.raises(UserError, match=r"names '../../secret.jpg', which is not a file"):
    data.load('celeba', data_dir=tmp_path)
  path.write_text(text.replace(names['12'][0], '/etc/passwd'))
  with pytest.raises(UserError, match="names '/etc/passwd', which is not a file"):
    data.load('celeba', data_dir=tmp_path)
  path.write_text(text.replace(names['12'][0], '999999.jpg'))
  with pytest.raises(UserError, match=r'999999\.jpg is missing'):
    data.load('celeba', data_dir=tmp_path)


@pytest.mark.parametrize(
  ('break_it', 'message'),
  [
    (lambda f: (f / 'img_align_celeba' / '000003.jpg').unlink(), '000003.jpg is miss'),
    (
      lambda f: (f / 'img_align_celeba' / '000003.jpg').write_bytes(b'x'),
      '000003.jpg is damaged',
    ),
    (lambda f: (f / 'identity_CelebA.txt').unlink(), 'Cannot read .*identity_CelebA'),
    (
      lambda f: (f / 'identity_CelebA.txt').write_text('000001.jpg\n'),
      'line 1: not "image identity"',
    ),
    (
      lambda f: (f / 'identity_CelebA.txt').write_text(
        ''.join(f'../x{i}.jpg 1\n' for i in range(5))
      ),
      r'has no line for \.\./x0\.jpg',
    ),
    (
      lambda f: (f / 'identity_CelebA.txt').write_text('000001.jpg 1\n' * 5),
      r'line 2: 000001\.jpg is listed twice',
    ),
    (
      lambda f: (f / 'list_attr_celeba.txt').write_text('1\nBald\n000001.jpg 1\n'),
      'its second line must name the attribute Smiling',
    ),
    (
      lambda f: (f / 'list_attr_celeba.txt').write_text('1\nSmiling\n000001.jpg 3\n'),
      'line 3: Smiling is neither 1 nor -1',
    ),
    (lambda f: (f / 'img_align_celeba').rename(f / 'other'), 'does not exist'),
  ],
)
def test_bad_celeba_files_are_named(tmp_path, break_it, message):
  folder = tmp_path / 'celeba'
  write_original(folder)
  break_it(folder)
  with pytest.raises(UserError, match=message):
    data.load('celeba', data_dir=tmp_path)


def test_only_square_images_are_rotated(tmp_path):
  x = np.zeros((12, 8, 6), np.uint8)
  np.savez(tmp_path / 'a.npz', **own_arrays(x=x))
  with pytest.raises(UserError, match=r'needs square images; those of .* are 8 by 6'):
    data.load(f'npz:{tmp_path}/a.npz', partition='rotated', num_clients=4)


def own_arrays(**changes):
  rng = np.random.default_rng(0)
  arrays = {
    'x': rng.normal(size=(12, 4)).astype(np.float32),
    'y': np.arange(12) % 3,
    'client': np.array(['b', 'a', 'c'] * 4),
  }
  return {k: v for k, v in (arrays | changes).items() if v is not None}


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


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'client': None}, 'lacks the array client'),
    ({'y': np.zeros(5, int)}, r'y has shape \(5,\); x has 12 rows'),
    ({'y': np.arange(12) - 1}, 'labels must be whole numbers from 0'),
    ({'y': np.arange(12) / 2}, 'labels must be whole numbers from 0'),
    ({'y': np.arange(12) + 2**31}, r'label 2147483659 is not in 0\.\.1048575'),
    ({'y': np.array(['a'] * 12)}, 'labels that are not numbers'),
    ({'x': np.array([['a']] * 12)}, 'x is <U1'),
    ({'x': np.arange(12.0)}, r'x has shape \(12,\)'),
    ({'scale': np.array(np.nan)}, 'scale nan must be positive'),
    ({'scale': np.array([1, 2])}, 'is damaged or not what it should be'),
    ({'x': np.full((12, 2), np.nan)}, 'row 0 of x holds values that are not finite'),
    ({'split': np.full(12, 2)}, 'split must hold 0'),
    ({'split': np.array([1, 0, 0] * 4)}, 'client b has no training examples'),
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


def prepare_tfds(tfds, folder, named, version, num_classes, splits, config=''):
  """Writes a set as TFDS prepares it, in array_record."""
  features = tfds.features.FeaturesDict({
    'image': tfds.features.Image(shape=(28, 28, 1)),
    'label': tfds.features.ClassLabel(num_classes=num_classes),
  })  # fmt: skip

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name = named
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split):
      for i, (image, label) in enumerate(splits[split]):
        png = io.BytesIO()
        Image.fromarray(image).save(png, 'png')
        yield i, {'image': png.getvalue(), 'label': label}

  Builder(data_dir=folder, file_format='array_record').download_and_prepare()


def test_tfds_is_read_offline_without_tensorflow(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  rng = np.random.default_rng(0)
  splits = {
    split: [
      (rng.integers(0, 256, (28, 28)).astype(np.uint8), i % 10) for i in range(count)
    ]
    for split, count in (('train', 40), ('test', 20))
  }
  folder = tmp_path / 'tfds'
  prepare_tfds(tfds, folder, 'fashion_mnist', '3.0.1', 10, splits)
  prepare_tfds(tfds, folder, 'emnist', '3.1.0', 62, splits, config='byclass')
  prepare_tfds(tfds, folder, 'toy', '1.0.0', 10, splits)
  train, test = data.load('fashion_mnist', data_dir=tmp_path, num_clients=4)
  assert train.num_clients == 4
  assert (train.num_classes, len(train.y), len(test.y)) == (10, 40, 20)
  flat = lambda part: sorted(x.tobytes() for x, _ in splits[part])
  assert sorted(x.tobytes() for x in train.x) == flat('train')
  assert sorted(x.tobytes() for x in test.x) == flat('test')
  emnist, _ = data.load('emnist', data_dir=tmp_path, num_clients=2)
  assert emnist.num_classes == 62
  upright = sorted(x.T.tobytes() for x, _ in splits['train'])
  assert sorted(x.tobytes() for x in emnist.x) == upright
  named, _ = data.load('tfds', data_dir=tmp_path, tfds_name='toy', num_clients=2)
  assert len(named.y) == 40


def test_without_network_the_sentence_says_so(tmp_path, monkeypatch):
  def refuse(*args):
    raise OSError('no network')

  monkeypatch.setattr('socket.getaddrinfo', refuse)
  (tmp_path / 'tfds').mkdir()
  with pytest.raises(UserError, match=r'cifar10 is not prepared in .*no network'):
    data.load('cifar10', data_dir=tmp_path)
  pytest.importorskip('datasets')
  with pytest.raises(
    UserError,
    match=r'holds no leaf_celeba/ or celeba/.*there is no network to download flwrlabs',
  ):
    data.load('celeba', data_dir=tmp_path)


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('cifar100', {}, '`name=cifar100` is unknown.*leaf:FOLDER or npz:FILE'),
    ('mnist_writers', {}, 'holds no qmnist/; point `data_dir'),
    (
      'femnist',
      {'source': 'idx'},
      '`source=idx` does not exist.*one of leaf, tff, hub',
    ),
    ('digits', {'background': 'black'}, '`background` does not apply to .*digits'),
    ('femnist', {'background': 'red'}, '`background=red` is unknown'),
    ('tfds', {}, '`name=tfds` needs `tfds_name`'),
    ('tfds', {'tfds_name': 'no_such'}, '`tfds_name=no_such`.*Dataset no_such not f'),
    ('hub', {}, '`name=hub` needs `hub_name=OWNER/NAME`'),
    ('hub', {'hub_name': '../x'}, 'not a file below'),
    ('synthetic', {'tfds_name': 'x'}, '`tfds_name` does not apply'),
    ('synthetic', {'synthetic_alpha': np.inf}, '`synthetic_alpha=inf` must be at l'),
    ('synthetic', {'synthetic_beta': -1.0}, '`synthetic_beta=-1.0` must be at least'),
    ('synthetic', {'num_clients': -1}, '`num_clients=-1` must be at least 0'),
    ('synthetic_linear', {'num_clients': 2}, '2 clients .* fewer than `partition_g'),
    ('tfds', {'tfds_name': 'mnist:9.9.9'}, '`tfds_name=mnist:9.9.9` is damaged or'),
    ('digits', {'min_examples': 5}, '`min_examples` chooses natural clients'),
    ('digits', {'dirichlet_alpha': np.inf}, '`dirichlet_alpha=inf` must be positive'),
    ('synthetic', {'synthetic_alpha': np.nan}, '`synthetic_alpha=nan` must be at lea'),
    ('synthetic', {'synthetic_beta': 1e308}, r'`synthetic_beta=1e\+308` must be at l'),
    ('synthetic', {'num_clients': 10**7}, '10000000 clients .* about 450 examples'),
    ('synthetic_linear', {'examples_per_client': 10**12}, 'clients .* lower one of'),
    ('npz:' + 'a' * 5000, {}, 'is damaged or not what it should be .*File name too l'),
    ('mnist', {'data_dir': 'a' * 5000}, '`data_dir=a.*File name too long'),
  ],
)
def test_wrong_choices_are_named(tmp_path, name, options, message):
  (tmp_path / 'leaf_femnist').mkdir()
  with pytest.raises(UserError, match=message):
    data.load(name, **{'data_dir': tmp_path} | options)


def test_synthetic_families_are_seeded_and_planted():
  for name in ('synthetic', 'synthetic_linear', 'synthetic_mixture'):
    load = lambda seed, name=name: data.load(
      name, num_clients=12, examples_per_client=40, partition_groups=3, seed=seed
    )
    train, test = load(0)
    assert np.asarray(train.sizes()).tolist() == [40] * 12
    assert np.asarray(test.sizes()).tolist() == [10] * 12
    np.testing.assert_array_equal(train.x, load(0)[0].x)
    assert not np.array_equal(train.x, load(1)[0].x)
    planted = None if name == 'synthetic' else (np.arange(12) % 3).tolist()
    clusters = train.info.clusters
    assert (None if clusters is None else clusters.tolist()) == planted


def test_synthetic_labels_follow_the_planted_models():
  # One least-squares model for each group explains its labels, not the others'.
  train, test = data.load(
    'synthetic_mixture', num_clients=4, examples_per_client=2000, partition_groups=2
  )
  fit = {}
  for group in (0, 1):
    x, y = train.client(group)
    targets = np.eye(10)[y]
    fit[group] = np.linalg.lstsq(np.c_[x, np.ones(len(x))], targets, rcond=None)[0]
  accuracy = np.zeros((2, 2))
  for model in (0, 1):
    for group in (0, 1):
      x, y = test.client(group + 2)  # Another client of the same group.
      guess = (np.c_[x, np.ones(len(x))] @ fit[model]).argmax(axis=1)
      accuracy[model, group] = (guess == y).mean()
  assert accuracy.diagonal().min() > 0.6
  assert max(accuracy[0, 1], accuracy[1, 0]) < 0.3


def test_alpha_and_beta_decide_how_much_clients_differ():
  spread = {}
  for beta in (0.0, 3.0):
    train, _ = data.load(
      'synthetic', num_clients=40, examples_per_client=50, synthetic_beta=beta
    )
    means = [train.client(i)[0].mean() for i in range(40)]
    spread[beta] = np.std(means)
  assert spread[3.0] > 5 * spread[0.0]


def test_label_skew_of_known_mixtures():
  assert skew.label_skew(np.array([[5, 5], [9, 9], [0, 0]])) == 0
  assert skew.label_skew(np.array([[8, 0], [0, 8]])) == pytest.approx(0.5)
  assert skew.label_skew(10 * np.eye(10)) == pytest.approx(0.9)
  train, _ = data.load('digits', partition='shards', num_clients=20)
  counts = skew.label_counts(train)
  for i in (0, 7):
    want = np.bincount(train.client(i)[1], minlength=10)
    np.testing.assert_array_equal(counts[i], want)


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
