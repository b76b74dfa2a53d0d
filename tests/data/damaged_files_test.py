"""Damaged files and wrong options are refused, with the path or the subject."""

import json
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from fesem_jax.data import sources
from fesem_jax.utils.errors import UserError
from tests.support.sources import (
  FEMNIST,
  write_cifar,
  write_idx,
  write_leaf_celeba,
  write_original,
  writers,
)


def cut(name):
  """Leaves a quarter of the files of a pattern."""

  def change(folder):
    for path in folder.glob(name):
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])

  return change


def remove(name):
  return lambda folder: next(folder.glob(name)).unlink()


def rename(name):
  def change(folder):
    path = next(folder.glob(name))
    path.rename(path.with_name('other'))

  return change


def change_user(**entries):
  """Changes the first user of LEAF's training files."""

  def change(folder):
    path = min(folder.glob('leaf_femnist/train/*'))
    content = json.loads(path.read_text())
    content['user_data'][content['users'][0]] |= entries
    path.write_text(json.dumps(content))

  return change


def repeat_users(folder):
  path = min(folder.glob('leaf_femnist/train/*'))
  path.with_name('z.json').write_text(path.read_text())


class Runs:
  """An object whose pickle runs code."""

  def __reduce__(self):
    return os.mkdir, ('made',)


def write_mnist(folder):
  for prefix, count in (('train', 9), ('t10k', 3)):
    images = np.zeros((count, 28, 28), np.uint8)
    write_idx(folder / 'mnist' / f'{prefix}-images-idx3-ubyte', images, zipped=True)
    labels = np.arange(count, dtype=np.uint8)
    write_idx(folder / 'mnist' / f'{prefix}-labels-idx1-ubyte', labels)
  for name, count in (('train', 9), ('test', 3)):
    table = np.ones((count, 8), '>i4')
    write_idx(folder / 'qmnist' / f'qmnist-{name}-labels-idx2-int', table)


def write_text(words):
  def write(folder):
    (folder / 'tinyshakespeare').mkdir()
    (folder / 'tinyshakespeare' / 'input.txt').write_text(words, 'utf-8')

  return write


def write_pfllib(folder, **changes):
  (folder / 'train').mkdir()
  data = {'x': np.zeros((4, 5), np.float32), 'y': np.arange(4)} | changes
  np.savez_compressed(folder / 'train' / '0.npz', data=data)


def write_images(folder):
  for kind, side in (('cat', 5), ('dog', 6)):
    (folder / 'pictures' / kind).mkdir(parents=True)
    image = Image.fromarray(np.zeros((side, 5), np.uint8))
    image.save(folder / 'pictures' / kind / '0.png')


def leaf(folder):
  FEMNIST['leaf'](folder, writers())


def hdf5(folder):
  FEMNIST['tff hdf5'](folder, writers())


def sqlite(folder):
  FEMNIST['tff sqlite'](folder, writers())


def nothing(folder):
  pass


DAMAGES = [
  ('femnist', leaf, cut('leaf_femnist/train/*'), 'leaf_femnist/train'),
  ('femnist', leaf, change_user(x=[['a'] * 784] * 3), 'user f0001_10'),
  ('femnist', leaf, change_user(y=[1, 0]), 'user f0001_10'),
  ('femnist', leaf, change_user(y=[1, 62, 0]), 'y: 62'),
  ('femnist', leaf, repeat_users, 'user f0001_10 is in two'),
  ('femnist', leaf, remove('leaf_femnist/test/*'), 'leaf_femnist: has no'),
  ('femnist', hdf5, remove('tff_femnist/*test*'), 'fed_emnist_test'),
  ('femnist', sqlite, cut('tff_femnist/*'), 'emnist_all.sqlite'),
  ('femnist', nothing, nothing, 'data_dir: .* has no leaf_femnist or tff_femnist'),
  ('celeba', write_original, cut('celeba/img*/000003.jpg'), '000003.jpg'),
  ('celeba', write_original, remove('celeba/identity*'), 'identity_CelebA'),
  ('celeba', write_leaf_celeba, rename('leaf_celeba/raw/img*'), 'img_align_celeba'),
  ('mnist', write_mnist, cut('mnist/train-images*'), 'train-images'),
  ('mnist', write_mnist, remove('mnist/t10k-labels*'), 't10k-labels'),
  ('mnist_writers', write_mnist, nothing, 'qmnist: labels differ'),
  ('cifar10', 'binary', cut('cifar-10-batches-bin/data_batch_3.bin'), 'data_batch_3'),
  ('cifar10', 'python', cut('cifar-10-batches-py/test_batch'), 'test_batch'),
  ('shakespeare', write_text('just words\nwithout'), nothing, 'just words.* no line'),
  ('shakespeare', write_text('ROMEO:\nO!'), nothing, 'input.txt: no speaker'),
  ('shakespeare', write_text('Иван:\n' + 'в лесу ' * 90), nothing, 'have no token'),
  ('stackoverflow', nothing, nothing, 'tff_stackoverflow'),
  ('npz(a.npz)', nothing, nothing, 'a.npz'),
  ('table(a.csv)', nothing, nothing, 'a.csv'),
  ('saved(a)', nothing, nothing, 'a: '),
  ('pfllib(.)', write_pfllib, cut('train/0.npz'), 'train/0.npz'),
  ('pfllib(a)', nothing, nothing, 'a: '),
  ('images(pictures)', write_images, nothing, 'shapes .*side='),
  ('images(pictures, side=9)', write_images, cut('pictures/dog/*'), 'pictures'),
  ('tfds(no_such)', nothing, nothing, r'tfds\(no_such\)'),
  ('minst', nothing, nothing, 'dataset: unknown .*mnist'),
  ('femnist(hue=1)', nothing, nothing, 'femnist.*hue'),
  ('femnist(background=red)', leaf, nothing, 'background: '),
  ('cifar100(labels=all)', nothing, nothing, 'labels: '),
  ('emnist(split=all)', nothing, nothing, 'split: '),
  ('text(a, stride=0)', nothing, nothing, 'stride: '),
  ('synthetic(alpha=-1)', nothing, nothing, 'alpha: '),
  ('synthetic_linear(groups=101)', nothing, nothing, 'groups: '),
]


@pytest.mark.parametrize(('dataset', 'write', 'damage', 'message'), DAMAGES)
def test_what_is_damaged_is_named(
  tmp_path, monkeypatch, dataset, write, damage, message
):
  monkeypatch.chdir(tmp_path)
  if isinstance(write, str):
    form = 'binary' if write == 'binary' else 'python 4'
    write_cifar(tmp_path, 'cifar10', 'labels', form)
  elif write.__name__ in ('write_original', 'write_leaf_celeba'):
    write(tmp_path / ('leaf_celeba' if 'leaf' in write.__name__ else 'celeba'))
  else:
    write(tmp_path)
  damage(tmp_path)
  with pytest.raises(UserError, match=message):
    sources.read(dataset, tmp_path)


def test_pickles_run_nothing(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_pfllib(tmp_path, y=Runs())
  write_cifar(tmp_path, 'cifar10', 'labels', 'python 2')
  batch = {'data': np.zeros((2, 3072), np.uint8), 'labels': Runs()}
  (tmp_path / 'cifar-10-batches-py' / 'test_batch').write_bytes(pickle.dumps(batch))
  for dataset in ('pfllib(.)', 'cifar10'):
    with pytest.raises(UserError, match='mkdir'):
      sources.read(dataset, tmp_path)
  assert not (tmp_path / 'made').exists()
