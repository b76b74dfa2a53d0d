"""Every file that a loader or a run reads: how to write, to change and to read it."""

import bz2
import contextlib
import csv
import functools
import gzip
import io
import itertools
import json
import pathlib
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from typing import NamedTuple

import h5py
import jax
import msgpack
import numpy as np
from flax import serialization
from PIL import Image

import fesem_jax as fj
from experiments import select_k
from fesem_jax import data, models, report
from fesem_jax.callbacks import ClientHistory
from fesem_jax.data import cache, wage_panel
from fesem_jax.models import porting, starting
from fesem_jax.results import client_history, export
from fesem_jax.utils import user_cache
from tests.fuzz import flag_files, mutations
from tests.support import helpers, runs, sources


class Format(NamedTuple):
  """A kind of file.

  Attributes:
    write: writes sound files into an empty folder.
    change: (random generator, folder) spoils one of them.
    read: reads a folder; raises `UserError`, or asserts that the data are plausible.
  """

  write: Callable
  change: Callable
  read: Callable


def bytes_of(*patterns):
  """Changes the bytes of one of the files of some names."""

  def change(rng, folder):
    found = sorted(p for name in patterns for p in folder.rglob(name) if p.is_file())
    path = found[rng.integers(len(found))]
    path.write_bytes(mutations.of_bytes(rng, path.read_bytes()))

  return change


def one_of(*changes):
  """One of several kinds of change."""
  return lambda rng, folder: changes[rng.integers(len(changes))](rng, folder)


def json_of(pattern):
  """Changes the values of a file of JSON."""

  def change(rng, folder):
    found = sorted(folder.rglob(pattern))
    path = found[rng.integers(len(found))]
    path.write_bytes(mutations.of_json(rng, json.loads(path.read_text())))

  return change


def npz_of(pattern):
  """Changes the arrays of an .npz."""

  def change(rng, folder):
    (path,) = folder.rglob(pattern)
    with np.load(path) as held:
      arrays = dict(held)
    path.write_bytes(mutations.of_npz(rng, arrays))

  return change


def plausible(splits):
  """Asserts that loaded splits are what a run can train on."""
  for split in splits:
    x, y = np.asarray(split.x), np.asarray(split.y)
    sizes = np.asarray(split.sizes())
    assert len(x) == len(y) == sizes.sum()
    assert (sizes >= 0).all()
    assert np.isfinite(x).all()
    assert x.dtype in (np.uint8, np.float32)
    assert np.isfinite(split.scale)
    if split.task != 'regression':
      least = -1 if split.task == 'sequence' else 0
      assert y.min(initial=0) >= least
      assert y.max(initial=0) < split.num_classes
    else:
      assert np.isfinite(y).all()
  assert splits[0].info.names.tolist() == splits[1].info.names.tolist()


def loads(name, **options):
  """Reads a data set of a folder."""
  return lambda folder: plausible(data.load(name, data_dir=folder, **options))


# LEAF


def _zipped_leaf(rng, folder):
  path = sorted(folder.rglob('*.json'))[0]
  raw = path.read_bytes()
  if rng.random() < 0.3:  # A bomb, or one within a string.
    raw = (
      raw[:-1] + b' ' * 2**27 if rng.random() < 0.5 else b'{"users":["' + b'a' * 2**27
    )
  path.unlink()
  packed = gzip.compress(raw, 1)
  if len(raw) < 2**20 or rng.random() < 0.5:
    packed = mutations.of_bytes(rng, packed)
  path.with_name(path.name + '.gz').write_bytes(packed)


def _write_leaf(folder):
  two = {name: held for name, held in list(sources.writers().items())[:2]}
  sources.write_leaf(folder / 'leaf_femnist', two)
  rng = np.random.default_rng(0)
  small = {
    f'u{i}': tuple({'x': rng.normal(size=(n, 3)).tolist(), 'y': [0, 1, 2, 1][:n]}
                   for n in (4, 2)) for i in range(2)
  }  # fmt: skip
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
  with _all_of() as each:
    with each():
      plausible(data.load('femnist', data_dir=folder))
    with each():
      plausible(data.load(f'leaf:{folder / "numbers"}'))
    with each():
      plausible(data.load('shakespeare', data_dir=folder))


@contextlib.contextmanager
def _all_of():
  """Several readers of one folder: raises the first `UserError` when all have run."""
  refused = []

  @contextlib.contextmanager
  def each():
    try:
      yield
    except fj.UserError as e:
      refused.append(e)

  yield each
  if refused:
    raise refused[0]


# idx, CIFAR, text, tables


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
  if rng.random() < 0.2:
    raw += bytes(2**27)
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
  with _all_of() as each:
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
  with _all_of() as each:
    for name in ('cifar10', 'cifar100'):
      with each():
        plausible(data.load(name, data_dir=folder, num_clients=2))


def _write_text(folder):
  folder.mkdir(parents=True, exist_ok=True)
  says = 'Now is the winter of our discontent made glorious summer by this sun.\n' * 9
  text = '\n'.join(f'{who}:\n{says}' for who in ('First', 'Second') * 2)
  (folder / 'input.txt').write_text(text)


def _change_text(rng, folder):
  path = folder / 'input.txt'
  path.write_bytes(mutations.of_lines(rng, path.read_text(), ' '))


def _read_text(folder):
  from fesem_jax.data import shakespeare

  pool = shakespeare.load_text(folder / 'input.txt', 7)
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
  if rng.random() < 0.05:
    changed += b'\0' * 2**27
  path.write_bytes(bz2.compress(changed, 1))


def _read_panel(folder):
  pool = wage_panel.read(folder / 'panel.csv.bz2')
  assert np.isfinite(pool.x).all()
  assert np.isfinite(pool.y).all()


def _write_faces(folder):
  sources.write_original(folder / 'celeba')


def _change_faces(rng, folder):
  path = (
    folder / 'celeba' / str(rng.choice(['identity_CelebA.txt', 'list_attr_celeba.txt']))
  )
  path.write_bytes(mutations.of_lines(rng, path.read_text(), ' '))


# TensorFlow Federated's


def _change_hdf5(rng, folder):
  path = sorted(folder.rglob('*.h5'))[rng.integers(2)]
  with h5py.File(path, 'a') as file:
    names = list(file['examples'])
    group = file['examples'][names[rng.integers(len(names))]]
    name = str(rng.choice(['pixels', 'label']))
    old = group[name][()]
    kind = int(rng.integers(0, 14))
    if kind != 13:
      del group[name]
    match kind:
      case 0:
        pass
      case 1:
        group[name] = h5py.SoftLink('/examples')
      case 2:
        group[name] = h5py.ExternalLink('/etc/passwd', '/')
      case 3:  # Declared, not stored.
        group.create_dataset(name, (2**40, 28, 28), 'f4', chunks=(1, 28, 28))
      case 4:
        group[name] = ['a'] * len(old)
      case 5:
        group[name] = old.astype('S4') if old.ndim == 1 else old.ravel()
      case 6:
        group[name] = np.full(old.shape, [np.nan, np.inf, -1, 1e300][rng.integers(4)])
      case 7:
        group[name] = np.zeros(old.shape, complex)
      case 8:
        group.create_group(name)
      case 9:
        group[name] = h5py.Empty('f4')
      case 10:
        group[name] = h5py.SoftLink(f'{group.name}/{name}')
      case 11:
        group.create_dataset(
          name, old.shape, old.dtype, external=[('/etc/passwd', 0, old.nbytes)]
        )
      case 12:
        group.create_dataset(
          name, (2**16, 28, 28), 'f4', chunks=(2**10, 28, 28), compression='gzip'
        )
      case 13:
        del file['examples']
        if rng.random() < 0.5:
          file['examples'] = old


def _blob(rng, blob):
  """A changed row of FedJAX: zlib of msgpack."""
  raw = zlib.decompress(blob)
  kind = int(rng.integers(0, 8))
  held = msgpack.unpackb(
    raw, raw=False, ext_hook=lambda code, x: msgpack.ExtType(code, x)
  )
  if kind == 0:
    return zlib.compress(mutations.of_bytes(rng, raw))
  if kind == 1:
    return mutations.of_bytes(rng, blob)
  if kind == 2:
    return zlib.compress(bytes(2**27), 1)
  if kind == 3:
    return zlib.compress(b'\xdd\xff\xff\xff\xff' + raw)  # A list of 4 billion.
  if kind == 4:
    return zlib.compress(b'\x91' * 2**17 + b'\x01')
  name = str(rng.choice(list(held)))
  found = [
    None, 3, 'x', [[1.5]], b'ab', {}, msgpack.ExtType(7, b''), msgpack.ExtType(1, b''),
    msgpack.ExtType(1, msgpack.packb(((2**40,), 'float32', b''))),
    msgpack.ExtType(1, msgpack.packb(((3, 28, 28), 'O', bytes(3 * 784 * 8)))),
    msgpack.ExtType(1, msgpack.packb(((-1,), 'float64', bytes(64)))),
    msgpack.ExtType(1, msgpack.packb(((0, 28, 28), 'float32', b''))),
    msgpack.ExtType(1, msgpack.packb(('x', ['f4'], 3))),
  ]  # fmt: skip
  if kind == 5:
    del held[name]
  else:
    held[name] = found[rng.integers(len(found))]
  return zlib.compress(msgpack.packb(held))


def _change_sqlite(rng, folder):
  path = sorted(folder.rglob('*.sqlite'))
  path = path[rng.integers(len(path))]
  with contextlib.closing(sqlite3.connect(path)) as db:
    tables = [
      n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    table = tables[rng.integers(len(tables))]
    columns = [row[1] for row in db.execute(f'PRAGMA table_info({table})')]
    column = columns[rng.integers(len(columns))]
    rows = [n for (n,) in db.execute(f'SELECT rowid FROM {table}')]
    row = rows[rng.integers(len(rows))]
    values = [
      None, 'x', b'', b'\xff\xfe', -1, 2**62, 1.5, 'é' * 9, '../../outside/evil', 'a\0b',
      b'\x0a' * 200, 'y' * 10**6,
    ]  # fmt: skip
    value = values[rng.integers(len(values))]
    blob = next((c for c in columns if c in ('data', 'serialized_example_proto')), None)
    kind = int(rng.integers(0, 10))
    with contextlib.suppress(sqlite3.IntegrityError):
      if blob and kind < 4:
        (old,) = db.execute(
          f'SELECT {blob} FROM {table} WHERE rowid=?', (row,)
        ).fetchone()
        value = _blob(rng, old) if blob == 'data' else mutations.of_bytes(rng, old)
        db.execute(f'UPDATE {table} SET {blob}=? WHERE rowid=?', (value, row))
      elif kind < 7:
        db.execute(f'UPDATE {table} SET {column}=? WHERE rowid=?', (value, row))
      elif kind == 7:
        db.execute(f'DELETE FROM {table} WHERE rowid=?', (row,))
      elif kind == 8:  # A column that is computed as it is read.
        others = ', '.join(c if c != column else f'{c} AS (zeroblob(400000000))'
                           for c in columns)  # fmt: skip
        kept = ', '.join(c for c in columns if c != column)
        db.execute(f'ALTER TABLE {table} RENAME TO old')
        db.execute(f'CREATE TABLE {table} ({others})')
        db.execute(f'INSERT INTO {table} ({kept}) SELECT {kept} FROM old')
      elif rng.random() < 0.5:
        db.execute(f'ALTER TABLE {table} RENAME TO old')
        db.execute(f'CREATE VIEW {table} AS SELECT * FROM old, old AS b')
      else:
        db.execute(f'ALTER TABLE {table} RENAME COLUMN {column} TO other')
    db.commit()


# Parquet


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


# A user's own arrays, and the cache of large data


def _write_npz(folder):
  folder.mkdir(parents=True, exist_ok=True)
  more = {
    'split': np.arange(12) // 9, 'cluster': np.array(['p', 'q', 'p'] * 4),
    'num_classes': np.array(3), 'scale': np.array(1.0),
  }  # fmt: skip
  np.savez(folder / 'own.npz', **sources.own_arrays(**more))


def _write_cache(folder):
  _write_npz(folder / 'source')


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


# Files of a run


@functools.cache
def _finished(folder):
  """A run of three rounds with everything that it can write."""
  made = folder / 'run'
  if not made.exists():
    _go(made)
  return made


def _go(folder):
  return runs.simulated(
    workdir=folder, rounds=3, checkpoint_every=1, make_portrait=True, resume=True,
    callbacks=[ClientHistory()], progress=False,
  )  # fmt: skip


_HOME: list[pathlib.Path] = []


def keep_runs_in(folder):
  """Where the run that is spoiled again and again lies."""
  _HOME[:] = [folder]


def _write_run(folder):
  shutil.copytree(_finished(_HOME[0]), folder, dirs_exist_ok=True)


_TURNS = itertools.count()


def _read_run(folder):
  """As a user loads a run, and by turns predicts, makes its page or goes on with it."""
  turn = next(_TURNS) % 4
  with _all_of() as each:
    with each():
      run = fj.load_run(folder)
      repr(run.clients), run.assignment, run.clients.of('c1'), run.history
      run.params(client='c1')
      if turn == 0:
        run.predict(np.zeros((2, *helpers.SHAPE), np.float32), client='c1')
        run.export(folder / 'made.msgpack', client='c1')
    with each():
      if turn in (0, 2):
        report.write_report(folder, folder / 'made.html')
    with each():
      if turn in (1, 3):
        _go(folder)


def _read_checkpoints(folder):
  """Goes on with a run whose checkpoints are damaged: its figures are the same."""
  _go(folder)
  assert runs.records(folder) == runs.records(_finished(_HOME[0]))


def _read_page(folder):
  report.write_report(folder, folder / 'made.html')


def _write_comparison(folder):
  for name in ('a', 'b'):
    shutil.copytree(_finished(_HOME[0]), folder / name / 'seed0')
  rows = [{'method': name, 'seeds': [0], 'deployed': {'micro_accuracy': [0.5, 0.1]}}
          for name in ('a', 'b')]  # fmt: skip
  table = {'methods': rows, 'report': 'last', 'paired': [], 'reference': 'a'}
  (folder / 'table.json').write_text(json.dumps(table))


def _change_lines(pattern, separator):
  def change(rng, folder):
    (path,) = folder.glob(pattern)
    path.write_bytes(mutations.of_lines(rng, path.read_text(), separator))

  return change


def _change_records(rng, folder):
  path = folder / 'metrics.jsonl'
  lines = path.read_bytes().splitlines()
  at = int(rng.integers(len(lines)))
  lines[at] = mutations.of_json(rng, json.loads(lines[at]))
  path.write_bytes(b'\n'.join(lines) + b'\n')


def _change_about(rng, folder):
  """What models.npz says of itself, with all digests right."""
  path = folder / 'models.npz'
  with np.load(path) as held:
    arrays = dict(held)
  about = mutations.of_json(rng, json.loads(str(arrays.pop('about')[0])))
  arrays['about'] = np.array([about.decode(errors='replace')[: 10**6]])
  np.savez(path, **arrays)


def _change_history(rng, folder):
  import pyarrow
  from pyarrow import parquet

  path = folder / 'history.parquet'
  table = parquet.read_table(path)
  name = table.column_names[rng.integers(len(table.column_names))]
  at = table.schema.get_field_index(name)
  others = [
    pyarrow.array(['x'] * len(table)), pyarrow.array([None] * len(table)),
    pyarrow.array([2**62] * len(table)), pyarrow.array([1.5] * len(table)),
    pyarrow.array([-7] * len(table)), pyarrow.array([b'\xff'] * len(table)),
    pyarrow.array([[1]] * len(table)), pyarrow.array([np.nan] * len(table)),
  ]  # fmt: skip
  match int(rng.integers(0, 5)):
    case 0:
      table = table.remove_column(at)
    case 1:
      table = table.slice(0, int(rng.integers(len(table))))
    case 2:
      table = pyarrow.concat_tables([table, table])
    case _:
      table = table.set_column(at, name, others[rng.integers(len(others))])
  parquet.write_table(table, path, row_group_size=int(rng.choice([7, 3, 1000])))


def _write_old_history(folder):
  _write_run(folder)
  history = client_history.read(folder)
  columns = history.columns()
  numbers = np.array([history.names.tolist().index(n) for n in columns['client']])
  (folder / 'history.parquet').unlink()
  arrays = columns | {'client': numbers.astype(np.int32), 'names': history.names}
  np.savez_compressed(folder / 'history.npz', **arrays)


def _read_history(folder):
  with _all_of() as each:
    with each():
      history = client_history.read(folder)
      history.columns()
      history.of('c1')
    with each():
      report.write_report(folder, folder / 'made.html')


# Weights


MODEL = models.build('mlp', (6,), 3, (5,))


def _params():
  return jax.device_get(MODEL.init(jax.random.key(0)))


def _write_weights(suffix):
  def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    layers = {
      f'{a}/{b}': np.asarray(x) for a, p in _params().items() for b, x in p.items()
    }
    if suffix == 'npz':
      np.savez(folder / 'w.npz', **layers)
    else:
      export.write(folder / f'w.{suffix}', _params(), layers, {'from': 'fuzz'})
    state = {
      'a.weight': layers['dense0/kernel'].T, 'a.bias': layers['dense0/bias'],
      'b.weight': layers['logits/kernel'].T, 'b.bias': layers['logits/bias'],
    }  # fmt: skip
    np.savez(folder / 'state.npz', **state)

  return write


def _read_weights(folder):
  (path,) = folder.glob('w.*')
  with _all_of() as each:
    with each():
      started = starting.start_from(MODEL, export.read(path), str(path))
      made = jax.device_get(started.init(jax.random.key(0)))
      assert all(np.isfinite(x).all() for x in jax.tree.leaves(made))
    with each():
      ported = porting.from_state_dict(MODEL, export.read(folder / 'state.npz'))
      assert all(np.isfinite(x).all() for x in jax.tree.leaves(ported))


def _change_safetensors(rng, folder):
  """The header: a length, and JSON of types, shapes and places."""
  path = folder / 'w.safetensors'
  raw = path.read_bytes()
  length = int.from_bytes(raw[:8], 'little')
  head = mutations.of_json(rng, json.loads(raw[8 : 8 + length]))
  size = len(head) if rng.random() < 0.8 else int(mutations.HUGE[rng.integers(7)])
  path.write_bytes((size % 2**64).to_bytes(8, 'little') + head + raw[8 + length :])


def _change_msgpack(rng, folder):
  path = folder / 'w.msgpack'
  params = _params()
  found = [
    None, 1, 'x', [1.0], {}, 1j, np.float32(3), b'ab', np.full((6, 5), 1e300),
    np.full((6, 5), np.nan), np.zeros((6, 5), 'S3'), np.zeros((5, 6)), np.zeros((6, 5), bool),
    np.zeros((6, 5), 'M8[s]'),
  ]  # fmt: skip
  layer = params[str(rng.choice(list(params)))]
  match int(rng.integers(0, 6)):
    case 0:
      layer.pop('kernel')
    case 1:
      layer['more'] = layer['kernel']
    case 2:
      raw = msgpack.packb({1: {2: 3}, 'a': {}, 'b.c': 1})
      return path.write_bytes(raw)
    case 3:
      raw = msgpack.packb({'dense0': msgpack.ExtType(1, msgpack.packb(
        ((2**40, 2**40), str(rng.choice(['float32', 'O', 'x', 'V0'])), b'')))})  # fmt: skip
      return path.write_bytes(raw)
    case 4:
      chunked = {'__msgpack_chunked_array__': ['x', True, {}][rng.integers(3)],
                 'shape': {'0': 2**40}, 'chunks': {'0': np.zeros(3)}}  # fmt: skip
      layer['kernel'] = chunked
    case _:
      layer['kernel'] = found[rng.integers(len(found))]
  try:
    path.write_bytes(serialization.msgpack_serialize(params))
  except (TypeError, ValueError):
    path.write_bytes(b'\x93' * 2**16)
  return None


def _state_npz(rng, folder):
  if rng.random() < 0.5:
    return npz_of('state.npz')(rng, folder)
  return npz_of('w.npz')(rng, folder)


def _silhouettes(folder):
  folder.mkdir(parents=True, exist_ok=True)
  held = {'data_digest': 'abc', 'scores': {'2': 0.5, '3': 0.25}}
  (folder / 'seed0.json').write_text(json.dumps(held))


RUN = bytes_of


FORMATS = {
  'LEAF JSON': Format(
    _write_leaf, one_of(json_of('*.json'), bytes_of('*.json'), _zipped_leaf), _read_leaf
  ),
  'idx': Format(
    _write_idx, one_of(bytes_of('*ubyte', '*int'), _idx_header, _zipped_idx), _read_idx
  ),
  'CIFAR binary': Format(_write_cifar, bytes_of('*.bin'), _read_cifar),
  'HDF5': Format(
    lambda f: sources.write_hdf5(f / 'tff_femnist', sources.writers()),
    one_of(_change_hdf5, bytes_of('*.h5')), loads('femnist'),
  ),
  'SQLite of TFF': Format(
    lambda f: sources.write_tff_sqlite(f / 'tff_femnist', sources.writers()),
    one_of(_change_sqlite, _change_sqlite, bytes_of('*.sqlite')), loads('femnist'),
  ),
  'SQLite of FedJAX': Format(
    lambda f: sources.write_fedjax(f / 'tff_femnist', sources.writers()),
    one_of(_change_sqlite, _change_sqlite, bytes_of('*.sqlite')), loads('femnist'),
  ),
  'Parquet of the hub': Format(
    _write_parquet, one_of(_change_parquet, _change_parquet, bytes_of('*.parquet')),
    loads('hub', hub_name='me/mine', hub_client_column='writer_id'),
  ),
  'npz of a user': Format(
    _write_npz, one_of(npz_of('own.npz'), npz_of('own.npz'), bytes_of('own.npz')),
    lambda folder: plausible(data.load(f'npz:{folder / "own.npz"}')),
  ),
  'text of speeches': Format(
    _write_text, one_of(_change_text, bytes_of('input.txt')), _read_text
  ),
  'CelebA lists': Format(
    _write_faces, one_of(_change_faces, bytes_of('*.txt', '*.jpg')), loads('celeba')
  ),
  'wage panel': Format(
    _write_panel, one_of(_change_panel, bytes_of('*.bz2')), _read_panel
  ),
  'flag files': Format(flag_files.write, flag_files.change, flag_files.read),
  'config.json': Format(
    _write_run, one_of(json_of('config.json'), json_of('config.json'), RUN('config.json')),
    _read_run,
  ),
  'summary.json': Format(
    _write_run,
    one_of(json_of('summary.json'), json_of('summary.json'), RUN('summary.json')),
    _read_run,
  ),
  'metrics.jsonl': Format(
    _write_run, one_of(_change_records, _change_records, RUN('metrics.jsonl')), _read_run
  ),
  'clients.csv': Format(
    _write_run, one_of(_change_lines('clients.csv', ','), RUN('clients.csv')), _read_run
  ),
  'clients.npz': Format(
    _write_run, one_of(npz_of('clients.npz'), npz_of('clients.npz'), RUN('clients.npz')),
    _read_run,
  ),
  'models.npz': Format(
    _write_run, one_of(npz_of('models.npz'), _change_about, RUN('models.npz')), _read_run
  ),
  'history.parquet': Format(
    _write_run, one_of(_change_history, RUN('history.parquet')), _read_history
  ),
  'history.npz': Format(
    _write_old_history, one_of(npz_of('history.npz'), RUN('history.npz')), _read_history
  ),
  'note of a checkpoint': Format(
    _write_run, one_of(json_of('note.json'), RUN('note.json')),
    _read_checkpoints,
  ),
  'state of a checkpoint': Format(_write_run, RUN('checkpoints/*/state/**/*'), _read_checkpoints
  ),
  'table.json': Format(
    _write_comparison, one_of(json_of('table.json'), RUN('table.json')), _read_page
  ),
  'silhouettes': Format(
    _silhouettes, one_of(json_of('seed0.json'), bytes_of('seed0.json')),
    lambda folder: select_k._read(folder / 'seed0.json'),
  ),
  'cache of data': Format(_write_cached, bytes_of('*.npz'), _read_cached),
  'state_dict npz': Format(
    _write_weights('npz'), one_of(_state_npz, _state_npz, bytes_of('*.npz')), _read_weights
  ),
  'safetensors': Format(
    _write_weights('safetensors'), one_of(_change_safetensors, bytes_of('*.safetensors')),
    _read_weights,
  ),
  'msgpack': Format(
    _write_weights('msgpack'), one_of(_change_msgpack, bytes_of('*.msgpack')), _read_weights
  ),
}  # fmt: skip
