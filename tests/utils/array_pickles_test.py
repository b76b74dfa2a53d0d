"""Pickles of arrays are read; other objects are never made."""

import contextlib
import io
import os
import pickle
import tracemalloc

import numpy as np
import pytest

from fesem_jax.utils import array_pickles
from fesem_jax.utils.errors import UserError

HELD = {
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
  held = HELD | {'nested': nested, 'plain': (1, 2.5, True, 'x', b'y\xff')}
  path = tmp_path / 'a.pkl'
  path.write_bytes(pickle.dumps(held, protocol))
  found = array_pickles.read_pickle(path)
  for name, value in HELD.items():
    got, want = array_pickles.array_of(found[name]), np.asarray(value)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype or name == 'scalars'
  inner = array_pickles.array_of(found['nested'])[0]['x']
  np.testing.assert_array_equal(array_pickles.array_of(inner), [1, 1])
  assert found['plain'] == held['plain']


def test_one_object_of_an_npy_file():
  for value in (np.array({'x': np.ones(2)}, object), np.arange(3)):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    found = array_pickles.read_npy(file.getvalue(), 'a.npy')
    inner = found['x'] if isinstance(found, dict) else found
    want = [1, 1] if isinstance(found, dict) else [0, 1, 2]
    np.testing.assert_array_equal(array_pickles.array_of(inner), want)


class Calls:
  """An object whose pickle calls a function."""

  def __init__(self, *call):
    self.call = call

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize(
  'bad',
  [
    Calls(os.mkdir, ('made',)),
    Calls(getattr, ('x', 'format')),
    np.array([Calls(os.mkdir, ('made',))], object),
    np.zeros(2, 'datetime64[s]'),
    np.zeros(2, [('a', int)]),
    Calls(np.dtype, ('V4',)),
    pickle.Pickler,
  ],
)
def test_other_objects_are_refused(tmp_path, monkeypatch, bad):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.pkl').write_bytes(pickle.dumps({'a': bad}))
  with pytest.raises((UserError, ValueError)):
    array_pickles.array_of(array_pickles.read_pickle(tmp_path / 'a.pkl')['a'])
  assert not (tmp_path / 'made').exists()


def test_damaged_pickles_are_named(tmp_path):
  raw = pickle.dumps(HELD)
  rng = np.random.default_rng(0)
  path = tmp_path / 'a.pkl'
  # A place in the memo for which the unpickler in C would allocate 32 GiB.
  changed = [b'', b'\x80\x04Nr\xff\xff\xff\xef.']
  for at in rng.choice(len(raw), 200):
    byte = bytes([rng.integers(256)])
    changed.append(raw[:at] + byte + raw[at + 1 :])
  for each in changed:
    path.write_bytes(each)
    with contextlib.suppress(UserError):
      array_pickles.read_pickle(path)
  path.write_bytes(raw[:40])
  with pytest.raises(UserError, match=r'a\.pkl is damaged'):
    array_pickles.read_pickle(path)


def test_a_length_beyond_the_end_allocates_nothing(tmp_path):
  raw = b'\x80\x05\x96' + (3 << 30).to_bytes(8, 'little') + b'ab.'
  tracemalloc.start()
  with pytest.raises(UserError, match=r'a\.pkl is damaged'):
    array_pickles._loads(raw, 'a.pkl')
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 2**20
  path = tmp_path / 'a.pkl'
  path.write_bytes(pickle.dumps([bytearray(b'ab')], 5))
  assert array_pickles.read_pickle(path) == [bytearray(b'ab')]


@pytest.mark.parametrize('state', [(None, {'kept': 1}), {'kept': 1}])
@pytest.mark.parametrize('name', ['numpy._core.multiarray\nscalar', 'numpy\ndtype'])
def test_no_state_of_a_shared_function_is_set(tmp_path, state, name):
  path = tmp_path / 'a.pkl'
  held = pickle.dumps(state, 0)[:-1]
  path.write_bytes(b'c' + name.encode() + b'\n' + held + b'b.')
  with pytest.raises(UserError, match='the state of an object that is no array'):
    array_pickles.read_pickle(path)
  module, function = name.split('\n')
  assert not hasattr(array_pickles._ALLOWED[module, function], 'kept')


def test_nested_lists_are_not_unfolded(tmp_path):
  doubled: list = []
  for _ in range(200):
    doubled = [doubled, doubled]
  held = np.empty(2, object)
  held[:] = [None, None]
  held[0] = doubled
  array = np.ones(3)
  path = tmp_path / 'a.pkl'
  path.write_bytes(pickle.dumps([doubled, held, [array, array], [array, array + 1]]))
  lists, inner, twice, once = array_pickles.read_pickle(path)
  for refused in (lists, array_pickles.array_of(inner)[0], twice):
    with pytest.raises(ValueError, match='a list of lists, or twice of one array'):
      array_pickles.array_of(refused)
  np.testing.assert_array_equal(array_pickles.array_of(once), [[1] * 3, [2] * 3])
