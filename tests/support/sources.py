"""Small data sets, written in the format of every source."""

import gzip
import json
import pickle
import sqlite3
import struct

import h5py
import numpy as np
from PIL import Image

WRITERS = {'f0001_10': (3, 2), 'f0000_14': (5, 1), 'f0002_03': (2, 2)}


def writers(seed=0):
  """Name -> ((train images, labels), (test images, labels)) of a tiny FEMNIST."""
  rng = np.random.default_rng(seed)

  def draw(n):
    return (rng.integers(0, 256, (n, 28, 28)).astype(np.uint8), rng.integers(0, 62, n))

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
  folder.mkdir(parents=True, exist_ok=True)
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


def contents(split):
  """Name -> (images, labels)."""
  return {str(n): split.client(i) for i, n in enumerate(split.info.names)}


def assert_same(split, expected):
  got = contents(split)
  assert sorted(got) == sorted(expected)
  for name, (x, y) in expected.items():
    np.testing.assert_array_equal(got[name][0], x)
    np.testing.assert_array_equal(got[name][1], y)


# Form -> function that writes writers below a data folder.
FEMNIST = {
  'leaf': lambda d, c: write_leaf(d / 'leaf_femnist', c),
  'leaf, many files': lambda d, c: write_leaf(
    d / 'leaf_femnist', c, shards=2, order=-1
  ),
  'leaf, zipped': lambda d, c: write_leaf(d / 'leaf_femnist', c, zipped=True),
  'tff hdf5': lambda d, c: write_hdf5(d / 'tff_femnist', c),
  'tff sqlite': lambda d, c: write_tff_sqlite(d / 'tff_femnist', c),
}


def write_idx(path, array, zipped=False):
  """Writes bytes or big-endian integers in idx format."""
  code = {np.dtype(np.uint8): 8, np.dtype('>i4'): 0x0C}[array.dtype]
  head = bytes([0, 0, code, array.ndim]) + struct.pack(f'>{array.ndim}I', *array.shape)
  path.parent.mkdir(parents=True, exist_ok=True)
  raw = head + array.tobytes()
  if zipped:
    path.with_name(path.name + '.gz').write_bytes(gzip.compress(raw))
  else:
    path.write_bytes(raw)


def write_cifar(data_dir, name, column, form='binary'):
  """CIFAR's files; returns (client, is test) -> images, labels of the column."""
  rng = np.random.default_rng(0)
  ten = name == 'cifar10'
  kinds = {'labels': 10} if ten else {'coarse_labels': 20, 'fine_labels': 100}
  train = [f'data_batch_{i}' for i in range(1, 6)] if ten else ['train']
  title, test = name.replace('cifar', 'cifar-'), ['test_batch'] if ten else ['test']
  batches = '-batches' * ten
  folder = title + batches + ('-bin' if ten else '-binary')
  if form != 'binary':
    folder = f'{title}{batches}-{"py" if ten else "python"}'
  (data_dir / folder).mkdir()
  splits = {}
  for i, names in enumerate((train, test)):
    xs, ys = [], []
    for file in names:
      labels = {kind: rng.integers(0, most, 6) for kind, most in kinds.items()}
      pixels = rng.integers(0, 256, (6, 3072)).astype(np.uint8)
      columns = np.column_stack([*labels.values(), pixels]).astype(np.uint8)
      if form == 'binary':
        (data_dir / folder / f'{file}.bin').write_bytes(columns.tobytes())
      else:
        batch = {k: v.tolist() for k, v in labels.items()} | {'data': pixels}
        batch |= {'batch_label': 'a batch', 'filenames': ['a.png']}
        if form == 'bytes':
          batch = {key.encode(): value for key, value in batch.items()}
        raw = pickle.dumps(batch, int(form[-1]) if form[-1].isdigit() else 4)
        (data_dir / folder / file).write_bytes(raw)
      xs.append(pixels.reshape(6, 3, 32, 32).transpose(0, 2, 3, 1))
      ys.append(labels[column])
    splits['', bool(i)] = np.concatenate(xs), np.concatenate(ys)
  return splits


def parts(pool):
  """(client, is test) -> x, y of a pool; '' is the client where there are none."""
  client = np.zeros(len(pool.y), int) if pool.client is None else pool.client
  names = [''] if pool.names is None else pool.names.tolist()
  test = np.zeros(len(pool.y), bool) if pool.test is None else pool.test
  result = {}
  for i, name in enumerate(names):
    for tested in (False, True):
      rows = (client == i) & (test == tested)
      if rows.any():
        result[name, tested] = np.asarray(pool.x[rows]), pool.y[rows]
  return result


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


def own_arrays(**changes):
  rng = np.random.default_rng(0)
  arrays = {
    'x': rng.normal(size=(12, 4)).astype(np.float32),
    'y': np.arange(12) % 3,
    'client': np.array(['b', 'a', 'c'] * 4),
  }
  return {k: v for k, v in (arrays | changes).items() if v is not None}


def sizes(split):
  return np.asarray(split.sizes())
