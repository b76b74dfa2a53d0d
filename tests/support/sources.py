"""Small data sets, written in the format of every source."""

import gzip
import json
import sqlite3

import h5py
import numpy as np
import pytest
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


def write_hdf5(folder, clients, kind=''):
  folder.mkdir(parents=True, exist_ok=True)
  for part, split in enumerate(('train', 'test')):
    with h5py.File(folder / f'fed_emnist{kind}_{split}.h5', 'w') as f:
      for name, splits in clients.items():
        x, y = splits[part]
        group = f.create_group(f'examples/{name}')
        group['pixels'] = (x / 255).astype(np.float32)
        group['label'] = y.astype(np.int32)


def write_tff_sqlite(folder, clients, kind='all'):
  from tensorflow_datasets.proto import tf_example_pb2

  folder.mkdir(parents=True)
  db = sqlite3.connect(folder / 'emnist_all.sqlite')
  db.execute('CREATE TABLE client_metadata (client_id, split_name, num_examples)')
  db.execute('CREATE TABLE examples (split_name, client_id, serialized_example_proto)')
  for part, split in enumerate(('train', 'test')):
    for name, splits in clients.items():
      count = len(splits[part][1])
      row = (name, f'{kind}_{split}', count)
      db.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', row)
      for x, y in zip(*splits[part], strict=True):
        example = tf_example_pb2.Example()
        pixels = (x.ravel() / 255).astype(np.float32)
        example.features.feature['pixels'].float_list.value.extend(pixels)
        example.features.feature['label'].int64_list.value.append(int(y))
        row = (f'{kind}_{split}', name, example.SerializeToString())
        db.execute('INSERT INTO examples VALUES (?, ?, ?)', row)
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
  features = datasets.Features(
    {
      'image': datasets.Image(),
      'writer_id': datasets.Value('string'),
      'character': datasets.ClassLabel(num_classes=62),
    }
  )
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

  def draw():
    return Image.fromarray(rng.integers(0, 256, (218, 178, 3)).astype(np.uint8))

  features = datasets.Features(
    {
      'image': datasets.Image(),
      'celeb_id': datasets.Value('int64'),
      'Smiling': datasets.Value('bool'),
      'Young': datasets.Value('bool'),
    }
  )
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
}


def break_leaf(change):
  """A LEAF folder in which the first training shard is changed."""

  def write(folder):
    write_leaf(folder / 'leaf_femnist', writers(), shards=2)
    path = sorted((folder / 'leaf_femnist' / 'train').iterdir())[0]
    content = json.loads(path.read_text())
    changed = change(content, path)
    path.write_text(changed if isinstance(changed, str) else json.dumps(content))

  return write


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
