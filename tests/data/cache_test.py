"""Arrays in the user's cache folder are those of the files, or are not used."""

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import cache as cache_module
from fesem_jax.data import leaf
from tests.support.sources import assert_same, write_leaf, writers


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
  kept.unlink()  # Whoever reads from it keeps what it was.
  kept.write_bytes(b'PK\x03\x04 cut short')
  parsed.clear()
  mended, _ = data.load('femnist', data_dir=tmp_path)
  assert parsed
  np.testing.assert_array_equal(changed.x, mended.x)


def test_a_file_of_another_split_has_another_digest(tmp_path):
  paths = [tmp_path / split / 'all.json' for split in ('train', 'test')]
  for path in paths:
    path.parent.mkdir()
    path.write_text('{}')
  assert len({cache_module.digest([path]) for path in paths}) == len(paths)


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
