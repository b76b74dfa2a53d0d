"""Rows that stay in their file: those of an array in memory, read when asked for."""

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.core.arrangement import arrange
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import cache as cache_module
from fesem_jax.data.splits import first_examples, hold_out, hold_out_clients
from fesem_jax.run.resume import digest_of_data
from fesem_jax.utils import safe_files, stored_rows
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import StoredRows
from tests.support import helpers
from tests.support.sources import write_leaf, writers

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (40, 3, 2)).astype(np.uint8)
SIZES = [7, 9, 4, 12, 8]


@pytest.fixture
def path(tmp_path):
  np.savez(tmp_path / 'a.npz', x=X, by_column=np.asfortranarray(X), other=np.arange(3))
  return tmp_path / 'a.npz'


@pytest.mark.parametrize('name', ['x', 'by_column'])
def test_rows_of_a_file_are_those_of_the_array(path, name):
  rows = safe_files.read_npz(path, stored=[name])[name]
  assert isinstance(rows, StoredRows)
  assert isinstance(rows._held, np.memmap)
  chosen = RNG.permutation(40)[:17]
  for found, want in (
    (rows, X),
    (rows.take(chosen), X[chosen]),
    (rows.take(chosen).take(np.arange(5)), X[chosen[:5]]),
    (stored_rows.changed(rows, lambda v: 255 - v).take(chosen), (255 - X)[chosen]),
    (rows.changed(np.float32).changed(lambda v: v / 2), X.astype(np.float32) / 2),
    (rows.changed(lambda v: v.transpose(0, 2, 1)), X.transpose(0, 2, 1)),
  ):
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    assert (found.ndim, found.nbytes, len(found)) == (3, want.nbytes, len(want))
    np.testing.assert_array_equal(np.asarray(found), want)
    np.testing.assert_array_equal(stored_rows.read(found), want)
    np.testing.assert_array_equal(found[2:5], want[2:5])
    np.testing.assert_array_equal(found[np.array([4, 0])], want[[4, 0]])
  own = rows[0:2]
  own[:] = 0  # A copy: the file cannot be written to.
  np.testing.assert_array_equal(rows[0:2], X[:2])


def test_rows_are_read_in_blocks(path, monkeypatch):
  rows = safe_files.read_npz(path, stored=['x'])['x']
  monkeypatch.setattr(stored_rows, '_BLOCK_BYTES', 20)  # Three rows of six bytes.
  found = list(stored_rows.blocks(rows))
  assert [first for first, _ in found] == list(range(0, 40, 3))
  np.testing.assert_array_equal(np.concatenate([part for _, part in found]), X)
  np.testing.assert_array_equal(stored_rows.read(rows), X)


def test_compressed_damaged_and_pickled_arrays_do_not_stay(tmp_path, path):
  np.savez_compressed(tmp_path / 'b.npz', x=X)
  assert isinstance(safe_files.read_npz(tmp_path / 'b.npz', ['x'])['x'], np.ndarray)
  with_holes = bytearray(path.read_bytes())
  at = bytes(with_holes).index(X.tobytes())
  with_holes[at + 100] ^= 1
  path.write_bytes(with_holes)
  with pytest.raises(UserError, match='is damaged'):
    safe_files.read_npz(path, stored=['x'])
  np.savez(tmp_path / 'c.npz', x=np.array([{}], object), allow_pickle=True)
  with pytest.raises(UserError, match='pickled'):
    safe_files.read_npz(tmp_path / 'c.npz', stored=['x'])


def in_file_and_memory(dtype=np.uint8):
  x, y = X.astype(dtype), RNG.integers(0, 3, 40)
  return [
    FederatedData.from_arrays(rows, y, SIZES, num_classes=3)
    for rows in (StoredRows(x), x)
  ]


@pytest.mark.parametrize('dtype', [np.uint8, np.float64])
def test_splits_of_a_file_are_those_of_an_array(dtype):
  lazy, whole = in_file_and_memory(dtype)
  assert isinstance(lazy.x, StoredRows)
  order = np.array([3, 0, 4])
  for change in (
    lambda d: d,
    lambda d: d.reorder(order, 8),
    lambda d: hold_out(d)[1],
    lambda d: hold_out_clients(d, d, 0.5)[1][0],
    lambda d: first_examples(d, 3),
  ):
    a, b = change(lazy), change(whole)
    assert isinstance(a.x, StoredRows)
    assert a.x.dtype == b.x.dtype
    for i in range(b.num_clients):
      for found, want in zip(a.client(i), b.client(i), strict=True):
        np.testing.assert_array_equal(found, want)
    assert digest_of_data(a) == digest_of_data(b)
  for how in ('replicated', 'sharded'):
    placed = [arrange(helpers.local(devices=2), d, d, how)[0] for d in (lazy, whole)]
    np.testing.assert_array_equal(placed[0].x, placed[1].x)


def test_features_of_a_file_must_be_finite():
  x = np.ones((4, 2), np.float32)
  x[3, 1] = np.inf
  with pytest.raises(ValueError, match='x: has NaN'):
    FederatedData.from_arrays(StoredRows(x), np.zeros(4, int), [4])


def test_a_digest_of_parts_is_that_of_the_whole(monkeypatch):
  _, whole = in_file_and_memory()
  own = np.array([True, False, True, True, False])
  parts = []
  for part in (own, ~own):
    monkeypatch.setattr(
      'fesem_jax.utils.processes.total', lambda found: parts.append(found) or found
    )
    digest_of_data(whole, here=[part])
  assert ((parts[0] == 0).all(axis=1) == ~own).all()
  monkeypatch.setattr('fesem_jax.utils.processes.total', lambda found: sum(parts))
  assert digest_of_data(whole, here=[own]) == digest_of_data(whole)
  other = whole.x.copy()
  other[-1] += 1  # Of the last client.
  changed = FederatedData.from_arrays(other, whole.y, SIZES, num_classes=3)
  assert digest_of_data(changed) != digest_of_data(whole)


@pytest.mark.parametrize('background', ['white', 'black'])
def test_a_cached_set_stays_in_its_cache(tmp_path, monkeypatch, background):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  write_leaf(tmp_path / 'leaf_femnist', writers())
  options = {'data_dir': tmp_path, 'background': background}
  wanted = data.load('femnist', **options)
  monkeypatch.setattr(cache_module, 'MIN_CACHED_BYTES', 0)
  for _ in range(2):  # As it is made, and as it is found.
    for found, want in zip(data.load('femnist', **options), wanted, strict=True):
      assert isinstance(found.x, StoredRows)
      np.testing.assert_array_equal(found.x, want.x)
  turned = data.load('femnist', partition='rotated', num_clients=4, **options)
  assert isinstance(turned[0].x, np.ndarray)
