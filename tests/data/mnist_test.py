"""MNIST's files, also by writer; damaged ones are named."""

import gzip
import struct

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import mnist
from fesem_jax.utils.errors import UserError
from tests.support.sources import sizes


def write_idx(path, array, zipped=True):
  """Writes an array in idx format."""
  code = {np.dtype(np.uint8): 8, np.dtype('>i4'): 0x0C}[array.dtype]
  raw = (
    bytes([0, 0, code, array.ndim])
    + struct.pack(f'>{array.ndim}I', *array.shape)
    + array.tobytes()
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  if zipped:
    path.with_name(path.name + '.gz').write_bytes(gzip.compress(raw))
  else:
    path.write_bytes(raw)


@pytest.fixture
def folder(tmp_path):
  """A tiny MNIST with QMNIST labels: 6 writers of 10 training, 4 test images."""
  rng = np.random.default_rng(0)
  for prefix, name, count in (('train', 'train', 60), ('t10k', 'test', 24)):
    labels = rng.integers(0, 10, count).astype(np.uint8)
    images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    write_idx(tmp_path / 'mnist' / f'{prefix}-images-idx3-ubyte', images)
    write_idx(tmp_path / 'mnist' / f'{prefix}-labels-idx1-ubyte', labels, zipped=False)
    table = np.zeros((count + 5, 8), '>i4')  # QMNIST has more test rows.
    table[:count, 0] = labels
    table[:, 1] = 4 * (np.arange(count + 5) % 6 >= 3)
    table[:, 2] = 100 + np.arange(count + 5) % 6
    write_idx(tmp_path / 'qmnist' / f'qmnist-{name}-labels-idx2-int', table)
  return tmp_path


def test_mnist_deals_its_own_test_split(folder):
  train, test = data.load(
    'mnist', partition='rotated', data_dir=folder, num_clients=8, examples_per_client=25
  )
  assert sizes(train).tolist() == [25] * 8
  assert sizes(test).tolist() == [12] * 8
  train_x, _ = mnist._read_split(folder / 'mnist', 'train')
  originals = {x.tobytes() for x in train_x}
  x, _ = train.client(3)
  assert all(np.rot90(i, -3).tobytes() in originals for i in x)
  assert (train.scale, train.num_classes) == (1 / 255, 10)


def test_mnist_writers_are_the_clients(folder):
  train, test = data.load('mnist_writers', data_dir=folder)
  assert train.info.names.tolist() == [f'writer0{i}' for i in range(100, 106)]
  assert train.info.clusters.tolist() == [0, 0, 0, 4, 4, 4]
  assert train.info.cluster_names[4] == 'HSF series 4'
  assert (sizes(train) + sizes(test)).tolist() == [14] * 6
  assert sizes(train).tolist() == [11] * 6
  few, _ = data.load(
    'mnist_writers', data_dir=folder, num_clients=3, examples_per_client=4
  )
  assert sizes(few).tolist() == [4] * 3


# What happens to the images (zipped), labels and table of training, and what is named.
DAMAGES = [
  (lambda x, y, t: x.write_bytes(x.read_bytes()[:-2000]), 'train-images'),
  (lambda x, y, t: y.write_bytes(y.read_bytes()[:-3]), 'buffer|reshape'),
  (lambda x, y, t: y.write_bytes(gzip.decompress(x.read_bytes())), 'train-labels'),
  (lambda x, y, t: write_idx(y, np.zeros(59, np.uint8), zipped=False), 'train-labels'),
  (lambda x, y, t: write_idx(y, np.full(60, 11, np.uint8), False), 'train-labels'),
  (lambda x, y, t: write_idx(t, np.zeros((60, 8), '>i4')), 'qmnist-train'),
]


@pytest.mark.parametrize(('damage', 'message'), DAMAGES)
def test_damaged_files_are_named(folder, damage, message):
  names = (
    'mnist/train-images-idx3-ubyte.gz', 'mnist/train-labels-idx1-ubyte',
    'qmnist/qmnist-train-labels-idx2-int',
  )  # fmt: skip
  damage(*(folder / name for name in names))
  with pytest.raises(ValueError, match=message):
    data.load('mnist_writers', data_dir=folder)


def test_a_client_with_one_example_is_named(folder):
  path = folder / 'qmnist' / 'qmnist-train-labels-idx2-int'
  table = mnist.read_idx(path, 2).astype('>i4')
  table[0, 2] = 77
  write_idx(path, table)
  with pytest.raises(
    UserError, match=r'Client writer0077 has 1 example.*`min_examples=2`'
  ):
    data.load('mnist_writers', data_dir=folder)
  train, _ = data.load('mnist_writers', data_dir=folder, min_examples=2)
  assert train.num_clients == 6
  with pytest.raises(
    UserError, match='Only 0 clients have at least `min_examples=999`'
  ):
    data.load('mnist_writers', data_dir=folder, min_examples=999)


def test_real_mnist_by_writer(real_data):
  train, test = data.load('mnist_writers', data_dir=real_data)
  total = sizes(train) + sizes(test)
  assert train.num_clients == 836
  assert (total.min(), total.max(), np.median(total)) == (8, 131, 104.5)
  assert (total >= 50).sum() == 583
  assert np.bincount(train.info.clusters).tolist() == [337, 0, 0, 0, 499]


def test_real_rotated_mnist(real_data):
  train, test = data.load(
    'mnist', partition='rotated', data_dir=real_data, num_clients=1200,
    examples_per_client=200,
  )  # fmt: skip
  assert sizes(train).tolist() == [200] * 1200
  assert sizes(test).sum() == 40_000
  assert 0.12 < np.asarray(train.x).mean() / 255 < 0.14  # MNIST's mean is 0.1307.


def write_like_mnist(folder, name='{}', parts=('train', 't10k'), first=0, classes=10):
  """Images and labels of both parts, in idx files without .gz, as torchvision has."""
  rng = np.random.default_rng(1)
  held = []
  for part, count in zip(parts, (30, 12), strict=True):
    labels = (first + np.arange(count) % classes).astype(np.uint8)
    images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    prefix = name.format(part)
    write_idx(folder / f'{prefix}-images-idx3-ubyte', images, zipped=False)
    write_idx(folder / f'{prefix}-labels-idx1-ubyte', labels, zipped=False)
    held += [images, labels]
  return held


def assert_holds(splits, held):
  for split, (images, labels) in zip(splits, (held[:2], held[2:]), strict=True):
    got = {x.tobytes(): y for x, y in zip(split.x, split.y, strict=True)}
    assert got == {x.tobytes(): y for x, y in zip(images, labels, strict=True)}


@pytest.mark.parametrize(
  ('name', 'folder', 'source'),
  [
    ('mnist', 'MNIST/raw', 'torchvision'),
    ('fashion_mnist', 'FashionMNIST/raw', 'torchvision'),
    ('fashion_mnist', 'fashion_mnist', 'idx'),
  ],
)
def test_folders_of_torchvision_are_found(tmp_path, name, folder, source):
  held = write_like_mnist(tmp_path / folder)
  for chosen in ('', source):
    splits = data.load(name, data_dir=tmp_path, source=chosen, num_clients=2)
    assert_holds(splits, held)


def test_writers_take_the_images_of_torchvision(folder):
  plain, _ = data.load('mnist_writers', data_dir=folder)
  (folder / 'MNIST').mkdir()
  (folder / 'mnist').rename(folder / 'MNIST' / 'raw')
  moved, _ = data.load('mnist_writers', data_dir=folder)
  np.testing.assert_array_equal(moved.x, plain.x)


@pytest.mark.parametrize(
  ('split', 'folder', 'first', 'classes'),
  [('letters', 'EMNIST/raw', 1, 26), ('balanced', 'emnist', 0, 47)],
)
def test_emnist_is_turned_upright(tmp_path, split, folder, first, classes):
  name, parts = f'emnist-{split}-{{}}', ('train', 'test')
  held = write_like_mnist(tmp_path / folder, name, parts, first, classes)
  held = [a.swapaxes(1, 2) if a.ndim == 3 else a - first for a in held]
  splits = data.load('emnist', data_dir=tmp_path, emnist_split=split, num_clients=2)
  assert splits[0].num_classes == classes
  assert_holds(splits, held)
