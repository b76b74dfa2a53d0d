"""Files of TensorFlow Federated and FedJAX: HDF5 and SQLite."""

import contextlib
import sqlite3
import zlib

import h5py
import msgpack
import numpy as np

from tests.fuzz import mutations
from tests.fuzz.forms import (
  Format,
  bytes_of,
  loads,
  one_of,
)
from tests.support import sources


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
      None, 'x', b'', b'\xff\xfe', -1, 2**62, 1.5, 'é' * 9, '../../outside/evil',
      'a\0b', b'\x0a' * 200, 'y' * 10**6,
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


FORMATS = {
  'HDF5': Format(
    lambda f: sources.write_hdf5(f / 'tff_femnist', sources.writers()),
    one_of(_change_hdf5, bytes_of('*.h5')),
    loads('femnist'),
  ),
  'SQLite of TFF': Format(
    lambda f: sources.write_tff_sqlite(f / 'tff_femnist', sources.writers()),
    one_of(_change_sqlite, _change_sqlite, bytes_of('*.sqlite')),
    loads('femnist'),
  ),
  'SQLite of FedJAX': Format(
    lambda f: sources.write_fedjax(f / 'tff_femnist', sources.writers()),
    one_of(_change_sqlite, _change_sqlite, bytes_of('*.sqlite')),
    loads('femnist'),
  ),
}
