"""Folders of pictures become clients or clusters, and classes."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from fesem_jax import data
from fesem_jax.data import pictures
from fesem_jax.utils.errors import UserError
from tests.support.commands import call
from tests.support.sources import sizes


def write(folder, places, side=9, count=4):
  """Pictures in some folders; returns their bytes -> the folder of each."""
  rng = np.random.default_rng(0)
  held = {}
  for place in places:
    (folder / place).mkdir(parents=True)
    for i in range(count):
      x = rng.integers(0, 256, (side, side, 3)).astype(np.uint8)
      Image.fromarray(x).save(folder / place / f'{i}.PNG')
      held[x.tobytes()] = place
  (folder / '.hidden.png').touch()
  (folder / places[0] / '.checkpoints').mkdir()
  (folder / places[0] / '.checkpoints' / 'a.png').touch()
  return held


def check(split, held, which, names):
  """Whether a split holds the pictures of `which` places of each client or class."""
  assert split.info.class_names == ('cat', 'dog')
  assert split.info.names.tolist() == names
  for i, name in enumerate(names):
    x, y = split.client(i)
    for picture, label in zip(x, y, strict=True):
      parts = held[picture.tobytes()].split('/')
      assert split.info.class_names[label] in parts
      assert which in parts or not which
      assert name in parts


PLACES = {
  'clients': ('a/cat', 'a/dog', 'b/cat'),
  'above': ('train/a/cat', 'train/a/dog', 'train/b/cat', 'test/a/cat', 'test/b/dog'),
  'below': ('a/train/cat', 'a/Train/dog', 'b/train/cat', 'a/test/cat', 'b/test/dog'),
  'images': ('a/cat/images', 'a/dog/images', 'b/cat/images'),
}


@pytest.mark.parametrize('form', PLACES)
def test_clients_in_folders(tmp_path, form):
  held = write(tmp_path, PLACES[form])
  train, test = data.load(f'images:{tmp_path}')
  split = form in ('above', 'below')
  check(train, held, 'train' * (form == 'above'), ['a', 'b'])
  check(test, held, 'test' if split else '', ['a', 'b'])
  assert len(train.y) + len(test.y) == len(held)
  if split:
    assert [sizes(part).tolist() for part in (train, test)] == [[8, 4], [4, 4]]
  assert (train.x.dtype, train.example_shape, train.scale) == (
    np.uint8,
    (9, 9, 3),
    1 / 255,
  )


def test_classes_alone_are_dealt(tmp_path):
  write(tmp_path, ('train/cat', 'train/dog', 'test/cat'), count=5)
  train, test = data.load(f'images:{tmp_path}', num_clients=2)
  assert (sizes(train).tolist(), len(test.y)) == ([5, 5], 5)
  assert set(np.asarray(test.y)) == {0}


def test_pictures_are_turned_as_their_cameras_were(tmp_path):
  x = np.zeros((4, 6, 3), np.uint8)
  x[0] = 255
  plain, turned = (io.BytesIO() for _ in range(2))
  exif = Image.Exif()
  exif[0x0112] = 6  # To be turned by 90 degrees, clockwise.
  Image.fromarray(x).save(plain, 'png')
  Image.fromarray(x).save(turned, 'png', exif=exif)
  np.testing.assert_array_equal(pictures.decode(plain.getvalue(), 'a', 0), x)
  found = pictures.decode(turned.getvalue(), 'a', 0)
  np.testing.assert_array_equal(found, np.rot90(x, -1))
  broken = io.BytesIO()
  Image.fromarray(x).save(broken, 'png', exif=b'Exif\0\0XX*\0\x08\0')
  np.testing.assert_array_equal(pictures.decode(broken.getvalue(), 'a', 0), x)


def test_domains_are_known_clusters(tmp_path):
  held = write(tmp_path, ('art/cat', 'art/dog', 'photo/cat', 'photo/dog'), count=10)
  train, test = data.load(
    f'images:{tmp_path}', image_groups='clusters', partition='cluster+dirichlet',
    num_clients=4,
  )  # fmt: skip
  assert list(train.info.clusters) == ['art', 'photo'] * 2
  for split in (train, test):
    for i, cluster in enumerate(train.info.clusters):
      assert {held[x.tobytes()].split('/')[0] for x in split.client(i)[0]} <= {cluster}
  assert len(train.y) + len(test.y) == 40


def test_a_cache_is_replaced_when_pictures_move(tmp_path, monkeypatch):
  monkeypatch.setattr('fesem_jax.data.cache.MIN_CACHED_BYTES', 0)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = tmp_path / 'pictures'
  for _ in range(2):
    held = write(folder, ('a/cat', 'a/dog'))
    for _ in range(2):
      train, _ = data.load(f'images:{folder}')
      check(train, held, '', ['a'])
    (folder / 'a').rename(folder / 'b')
    (folder / '.hidden.png').unlink()
    train, _ = data.load(f'images:{folder}')
    assert train.info.names.tolist() == ['b']
    (folder / 'b').rename(tmp_path / f'old{len(list(tmp_path.iterdir()))}')


def test_a_cache_is_replaced_by_pictures_of_the_same_size_and_date(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('fesem_jax.data.cache.MIN_CACHED_BYTES', 0)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = tmp_path / 'pictures'
  folder.mkdir()
  for shade in (50, 200):
    for i in range(10):
      path = folder / 'ab'[i % 2] / f'{i}.bmp'
      path.parent.mkdir(exist_ok=True)
      Image.fromarray(np.full((4, 4), shade + i, np.uint8)).save(path)
      os.utime(path, (0, 0))  # As of archives that are built again alike.
    train, _ = data.load(f'images:{folder}', num_clients=2)
    assert abs(int(np.asarray(train.x).mean()) - shade) < 10


@pytest.mark.parametrize(
  ('places', 'message'),
  [
    (('.',), 'in a folder for each class'),
    (('train/cat', 'dog'), 'folder train or test'),
    (('a/cat', 'dog'), 'folder of a client'),
  ],
)
def test_other_folders_are_named(tmp_path, places, message):
  for place in places:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / place / '0.PNG')
  with pytest.raises(UserError, match=message):
    data.load(f'images:{tmp_path}')


def test_bad_pictures_are_named(tmp_path):
  write(tmp_path / 'a', ('cat', 'dog'))
  Image.fromarray(np.zeros((9, 5), np.uint8)).save(tmp_path / 'a' / 'dog' / '9.png')
  with pytest.raises(UserError, match='`image_side`'):
    data.load(f'images:{tmp_path}/a')
  told = call(
    'data', f'--dataset=images:{tmp_path}/a', '--image_side=16',
    '--num_clients=2', cwd=tmp_path,
  )  # fmt: skip
  assert told.returncode == 0, told.stderr
  (tmp_path / 'a' / 'dog' / '9.png').write_bytes(b'no picture')
  with pytest.raises(UserError, match=r'dog/9\.png'):
    data.load(f'images:{tmp_path}/a')
