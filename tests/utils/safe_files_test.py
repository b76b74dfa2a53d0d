"""Pickles of arrays are read; other objects are never made."""

import contextlib
import io
import os
import pickle

import numpy as np
import pytest

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import read_npy, read_pickle

ARRAYS = {
  'big-endian': np.arange(6.0).reshape(2, 3).astype('>f4'),
  'columns first': np.asfortranarray(np.arange(6).reshape(2, 3)),
  'text': np.array(['a', 'bcd']),
  'bytes': np.array([b'a', b'bcd']),
  'empty': np.zeros((0, 3), np.uint8),
  'scalars': [np.int64(3), np.float32(0.5)],
  'list': [1, 2, 3],
}


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_back(tmp_path, protocol):
  nested = np.array([{'x': np.ones(2)}, None], object)
  values = ARRAYS | {'nested': nested, 'plain': (1, 2.5, True, 'x', b'y\xff')}
  path = tmp_path / 'a.pkl'
  path.write_bytes(pickle.dumps(values, protocol))
  loaded = read_pickle(path)
  for name, value in ARRAYS.items():
    np.testing.assert_array_equal(loaded[name], value)
    assert np.asarray(loaded[name]).dtype.kind == np.asarray(value).dtype.kind
  np.testing.assert_array_equal(loaded['nested'][0]['x'], [1, 1])
  assert loaded['plain'] == values['plain']


def test_one_object_of_an_npy_file():
  file = io.BytesIO()
  np.save(file, np.array({'x': 2.0}, object), allow_pickle=True)
  assert read_npy(file.getvalue(), 'a.npy') == {'x': 2.0}


class Calls:
  """An object whose pickle calls a function."""

  def __init__(self, *call):
    self.call = call

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize(
  'bad',
  [Calls(os.mkdir, ('made',)), Calls(getattr, ('x', 'format')),
   np.array([Calls(os.mkdir, ('made',))], object), pickle.Pickler],
)  # fmt: skip
def test_other_objects_are_refused(tmp_path, monkeypatch, bad):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.pkl').write_bytes(pickle.dumps({'a': bad}))
  with pytest.raises(UserError, match=r'a\.pkl'):
    read_pickle(tmp_path / 'a.pkl')
  assert not (tmp_path / 'made').exists()


def test_damaged_pickles_are_named(tmp_path):
  raw = pickle.dumps(ARRAYS)
  rng = np.random.default_rng(0)
  path = tmp_path / 'a.pkl'
  # A place in the memo for which the unpickler in C would allocate 32 GiB.
  damaged = [b'', b'\x80\x04Nr\xff\xff\xff\xef.']
  for i in rng.choice(len(raw), 200):
    damaged.append(raw[:i] + bytes([rng.integers(256)]) + raw[i + 1 :])
  for content in damaged:
    path.write_bytes(content)
    with contextlib.suppress(UserError):
      read_pickle(path)
  path.write_bytes(raw[:40])
  with pytest.raises(UserError, match=r'a\.pkl'):
    read_pickle(path)
