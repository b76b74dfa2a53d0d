"""Files of data sets: LEAF, idx, CIFAR, texts, tables, Parquet, a user's arrays."""

import bz2
import csv
import functools
import gzip
import io
import json

import numpy as np
from PIL import Image

from fesem_jax import data
from fesem_jax.data import cache, texts, wage_panel
from fesem_jax.utils import user_cache
from tests.fuzz import mutations
from tests.fuzz.forms import (
  Format,
  all_of,
  bytes_of,
  json_of,
  lines_of,
  loads,
  npz_of,
  one_of,
  plausible,
)
from tests.support import sources


def _zipped_leaf(rng, folder):
  path = sorted(folder.rglob('*.json'))[0]
  raw = path.read_bytes()
  path.unlink()
  packed = mutations.of_bytes(rng, gzip.compress(raw, 1))
  path.with_name(path.name + '.gz').write_bytes(packed)


def _write_leaf(folder):
  two = dict(list(sources.writers().items())[:2])
  sources.write_leaf(folder / 'leaf_femnist', two)
  rng = np.random.default_rng(0)
  small = {
    f'u{i}': tuple(
      {'x': rng.normal(size=(n, 3)).tolist(), 'y': [0, 1, 2, 1][:n]} for n in (4, 2)
    )
    for i in range(2)
  }
  plays = {
    f'role{i}': ({'x': ['a' * 80] * 2, 'y': ['b', 'c']}, {'x': ['d' * 80], 'y': ['e']})
    for i in range(2)
  }
  for name, clients in (('numbers', small), ('plays', plays)):
    for part, split in enumerate(('train', 'test')):
      (folder / name / split).mkdir(parents=True)
      content = {
        'users': list(clients),
        'num_samples': [len(c[part]['y']) for c in clients.values()],
        'user_data': {user: c[part] for user, c in clients.items()},
      }
      (folder / name / split / 'a.json').write_text(json.dumps(content))
  (folder / 'plays').rename(folder / 'leaf_shakespeare')


def _read_leaf(folder):
  with all_of() as each:
    with each():
      plausible(data.load('femnist', data_dir=folder))
    with each():
      plausible(data.load(f'leaf:{folder / "numbers"}'))
    with each():
      plausible(data.load('shakespeare', data_dir=folder))


def _idx(array, code):
  shape = np.array(array.shape, '>u4').tobytes()
  return bytes([0, 0, code, array.ndim]) + shape + array.tobytes()


def _write_idx(folder):
  rng = np.random.default_rng(0)
  for name in ('mnist', 'qmnist'):
    (folder / name).mkdir(parents=True)
  for prefix, name, n in (('train', 'train', 12), ('t10k', 'test', 8)):
    x, y = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8), np.arange(n) % 10
    table = np.zeros((n, 8), '>i4')
    table[:, 0], table[:, 1], table[:, 2] = y, np.arange(n) % 2, np.arange(n) % 2
    of_mnist = folder / 'mnist'
    (of_mnist / f'{prefix}-images-idx3-ubyte').write_bytes(_idx(x, 8))
    (of_mnist / f'{prefix}-labels-idx1-ubyte').write_bytes(_idx(y.astype(np.uint8), 8))
    path = folder / 'qmnist' / f'qmnist-{name}-labels-idx2-int'
    path.write_bytes(_idx(table, 12))


def _zipped_idx(rng, folder):
  path = sorted(p for p in folder.rglob('*') if p.is_file())[rng.integers(6)]
  raw = path.read_bytes()
  path.unlink()
  packed = gzip.compress(raw, 1)
  if rng.random() < 0.7:
    packed = mutations.of_bytes(rng, packed)
  path.with_name(path.name + '.gz').write_bytes(packed)


def _idx_header(rng, folder):
  path = sorted(p for p in folder.rglob('*') if p.is_file())[rng.integers(6)]
  raw = bytearray(path.read_bytes())
  at = int(rng.choice([0, 4, 8, 12]))
  number = int(mutations.HUGE[rng.integers(7)]) % 2**32
  raw[at : at + 4] = number.to_bytes(4, 'big')
  path.write_bytes(raw)


def _read_idx(folder):
  with all_of() as each:
    with each():
      plausible(data.load('mnist', data_dir=folder, num_clients=2))
    with each():
      plausible(data.load('mnist_writers', data_dir=folder))


def _write_cifar(folder):
  rng = np.random.default_rng(0)

  def records(n, classes):
    labels = [rng.integers(0, c, (n, 1)) for c in classes]
    pixels = rng.integers(0, 256, (n, 3072))
    return np.concatenate([*labels, pixels], axis=1).astype(np.uint8).tobytes()

  ten, hundred = folder / 'cifar-10-batches-bin', folder / 'cifar-100-binary'
  for path in (ten, hundred):
    path.mkdir(parents=True)
  for name in (*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'):
    (ten / name).write_bytes(records(4, [10]))
  for name in ('train.bin', 'test.bin'):
    (hundred / name).write_bytes(records(4, [20, 100]))


def _read_cifar(folder):
  with all_of() as each:
    for name in ('cifar10', 'cifar100'):
      with each():
        plausible(data.load(name, data_dir=folder, num_clients=2))


def _write_text(folder):
  folder.mkdir(parents=True, exist_ok=True)
  says = 'Now is the winter of our discontent made glorious summer by this sun.\n' * 9
  text = '\n'.join(f'{who}:\n{says}' for who in ('First', 'Second') * 2)
  (folder / 'input.txt').write_text(text)


def _read_text(folder):

  pool = texts.load(folder / 'input.txt', 7, 'leaf')
  assert len(pool.x) == len(pool.y)
  assert pool.x.shape[1] == 80
  assert pool.y.max() < pool.num_classes


def _write_panel(folder):
  out = io.StringIO()
  rows = csv.writer(out)
  names = ['nr', 'year', 'black', 'exper', 'hisp', 'hours', 'married', 'educ', 'union',
           'expersq', 'lwage']  # fmt: skip
  rows.writerow(names)
  rng = np.random.default_rng(0)
  for i in range(12):
    rows.writerow([i % 3, *rng.normal(size=10).round(3)])
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'panel.csv.bz2').write_bytes(bz2.compress(out.getvalue().encode()))


def _change_panel(rng, folder):
  path = folder / 'panel.csv.bz2'
  text = bz2.decompress(path.read_bytes()).decode()
  changed = mutations.of_lines(rng, text)
  path.write_bytes(bz2.compress(changed, 1))


def _read_panel(folder):
  pool = wage_panel.read(folder / 'panel.csv.bz2')
  assert np.isfinite(pool.x).all()
  assert np.isfinite(pool.y).all()


@functools.cache
def _pictures():
  """Bytes of images, sound ones and others."""

  def png(mode, size):
    out = io.BytesIO()
    Image.new(mode, size).save(out, 'png')
    return out.getvalue()

  return [
    png('L', (28, 28)), png('RGB', (28, 28)), png('L', (29, 28)), png('I;16', (28, 28)),
    png('1', (12_000, 12_000)), png('L', (20_000, 20_000)), b'GIF89a', b'', b'\xff\xd8',
    png('L', (28, 28))[:60],
  ]  # fmt: skip


def _write_parquet(folder):
  sources.write_hub(folder / 'me' / 'mine', sources.writers())


def _change_parquet(rng, folder):
  import pyarrow
  from pyarrow import parquet

  (path,) = folder.rglob('*.parquet')
  table = parquet.read_table(path)
  row = int(rng.integers(len(table)))
  columns = {name: table.column(name).to_pylist() for name in table.column_names}
  about = dict(table.schema.metadata or {})
  kind, schema = int(rng.integers(0, 9)), table.schema
  match kind:
    case 0 | 1 | 2:
      pictures = _pictures()
      raw = pictures[rng.integers(len(pictures))]
      if rng.random() < 0.4:
        raw = mutations.of_bytes(rng, pictures[0])
      columns['image'][row] = [
        {'bytes': raw, 'path': '../../outside/evil'},
        {'bytes': None, 'path': '/etc/passwd'},
        None,
      ][0 if kind else rng.integers(3)]
    case 3:
      columns['character'][row] = [None, -1, 99, 2**62][rng.integers(4)]
    case 4:
      columns['writer_id'][row] = [None, '', 'a\0b', '../../outside/evil'][
        rng.integers(4)
      ]
    case 5:
      name = list(columns)[rng.integers(3)]
      del columns[name]
      schema = schema.remove(schema.get_field_index(name))
    case 6 | 7:  # What the hub says of the columns.
      key = next(iter(about))
      about[key] = mutations.of_json(rng, json.loads(about[key]))
    case 8:
      columns = {name: values[:0] for name, values in columns.items()}
  made = pyarrow.table(columns, schema=schema.with_metadata(about))
  parquet.write_table(made, path)


def _write_npz(folder):
  folder.mkdir(parents=True, exist_ok=True)
  more = {
    'split': np.arange(12) // 9,
    'cluster': np.array(['p', 'q', 'p'] * 4),
    'num_classes': np.array(3),
    'scale': np.array(1.0),
  }
  np.savez(folder / 'own.npz', **sources.own_arrays(**more))


def _cached(folder):
  """Arrays that are kept in the cache folder of this user, here a folder inside."""
  size, where = cache.MIN_CACHED_BYTES, user_cache.folder
  arrays = {'x': np.arange(60.0).reshape(12, 5), 'y': np.arange(12)}
  cache.MIN_CACHED_BYTES, user_cache.folder = 0, lambda: folder / 'cache'
  try:
    return cache.cached(folder, 'fuzz', lambda: 'key', 1, lambda: arrays, ['x']), arrays
  finally:
    cache.MIN_CACHED_BYTES, user_cache.folder = size, where


def _write_cached(folder):
  folder.mkdir(parents=True, exist_ok=True)
  _cached(folder)


def _read_cached(folder):
  # Its path depends on the folder's, and the sound files lie elsewhere.
  (path,) = (folder / 'cache').rglob('*.npz')
  size, where = cache.MIN_CACHED_BYTES, user_cache.folder
  user_cache.folder = lambda: folder / 'cache'
  try:
    path.rename(cache.cache_path(folder, 'fuzz'))
  finally:
    cache.MIN_CACHED_BYTES, user_cache.folder = size, where
  found, arrays = _cached(folder)
  for name, x in arrays.items():
    np.testing.assert_array_equal(np.asarray(found[name]), x)


def _write_pictures(folder):
  rng = np.random.default_rng(0)
  for place in ('a/cat', 'a/dog', 'b/cat'):
    (folder / 'pictures' / place).mkdir(parents=True, exist_ok=True)
    for i in range(3):
      x = rng.integers(0, 256, (9, 9, 3)).astype(np.uint8)
      Image.fromarray(x).save(folder / 'pictures' / place / f'{i}.png')


FORMATS = {
  'LEAF JSON': Format(
    _write_leaf, one_of(json_of('*.json'), bytes_of('*.json'), _zipped_leaf), _read_leaf
  ),
  'idx': Format(
    _write_idx, one_of(bytes_of('*ubyte', '*int'), _idx_header, _zipped_idx), _read_idx
  ),
  'CIFAR binary': Format(_write_cifar, bytes_of('*.bin'), _read_cifar),
  'Parquet of the hub': Format(
    _write_parquet, one_of(_change_parquet, _change_parquet, bytes_of('*.parquet')),
    loads('hub', hub_name='me/mine', hub_client_column='writer_id'),
  ),
  'npz of a user': Format(
    _write_npz, one_of(npz_of('own.npz'), npz_of('own.npz'), bytes_of('own.npz')),
    lambda folder: plausible(data.load(f'npz:{folder / "own.npz"}')),
  ),
  'text of speeches': Format(
    _write_text, one_of(lines_of('input.txt', ' '), bytes_of('input.txt')), _read_text
  ),
  'CelebA lists': Format(
    lambda folder: sources.write_original(folder / 'celeba'),
    one_of(lines_of('*.txt', ' '), bytes_of('*.txt', '*.jpg')),
    loads('celeba'),
  ),
  'images in folders': Format(
    _write_pictures, bytes_of('*.png'),
    lambda folder: plausible(data.load(f'images:{folder / "pictures"}')),
  ),
  'wage panel': Format(
    _write_panel, one_of(_change_panel, bytes_of('*.bz2')), _read_panel
  ),
  'cache of data': Format(_write_cached, bytes_of('*.npz'), _read_cached),
}  # fmt: skip
