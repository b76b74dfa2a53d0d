"""Files of TensorFlow Federated: HDF5 and SQLite."""

import contextlib
import sqlite3

import h5py
import numpy as np

from tests.fuzz import mutations
from tests.fuzz.forms import Format, bytes_of, loads, one_of
from tests.support import sources


def _change_hdf5(rng, folder):
  path = sorted(folder.rglob('*.h5'))[rng.integers(2)]
  with h5py.File(path, 'a') as file:
    names = list(file['examples'])
    group = file['examples'][names[rng.integers(len(names))]]
    name = str(rng.choice(['pixels', 'label']))
    old = group[name][()]
    kind = int(rng.integers(0, 11))
    if kind != 10:
      del group[name]
    match kind:
      case 0:
        pass
      case 1:
        group[name] = h5py.SoftLink('/examples')
      case 2:  # Declared, not stored.
        group.create_dataset(name, (2**40, 28, 28), 'f4', chunks=(1, 28, 28))
      case 3:
        group[name] = ['a'] * len(old)
      case 4:
        group[name] = old.astype('S4') if old.ndim == 1 else old.ravel()
      case 5:
        group[name] = np.full(old.shape, [np.nan, np.inf, -1, 1e300][rng.integers(4)])
      case 6:
        group[name] = np.zeros(old.shape, complex)
      case 7:
        group.create_group(name)
      case 8:
        group[name] = h5py.Empty('f4')
      case 9:
        group[name] = h5py.SoftLink(f'{group.name}/{name}')
      case 10:
        del file['examples']
        if rng.random() < 0.5:
          file['examples'] = old


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
    blob = next((c for c in columns if c == 'serialized_example_proto'), None)
    kind = int(rng.integers(0, 9))
    with contextlib.suppress(sqlite3.IntegrityError):
      if blob and kind < 4:
        (old,) = db.execute(
          f'SELECT {blob} FROM {table} WHERE rowid=?', (row,)
        ).fetchone()
        value = mutations.of_bytes(rng, old)
        db.execute(f'UPDATE {table} SET {blob}=? WHERE rowid=?', (value, row))
      elif kind < 7:
        db.execute(f'UPDATE {table} SET {column}=? WHERE rowid=?', (value, row))
      elif kind == 7:
        db.execute(f'DELETE FROM {table} WHERE rowid=?', (row,))
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
}
