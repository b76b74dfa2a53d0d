"""CIFAR's official files, binary and for Python; damaged and absent ones are named."""

import pickle

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import cache as cache_module
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import StoredRows
from tests.support.sources import sizes

CIFAR10 = {f'data_batch_{i}.bin': 8 for i in range(1, 6)} | {'test_batch.bin': 12}


def write_cifar(folder, counts, classes, seed=0):
  """Files of random records: a byte for each number of classes, then an image.

  Returns:
    File -> (labels [N, columns], images [N, 32, 32, 3]).
  """
  rng = np.random.default_rng(seed)
  folder.mkdir(parents=True)
  held = {}
  for name, count in counts.items():
    labels = np.stack([rng.integers(0, most, count) for most in classes], axis=1)
    images = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    raw = b''
    for label, image in zip(labels, images, strict=True):
      raw += bytes(label.tolist())
      for channel in range(3):
        raw += image[:, :, channel].tobytes()
    (folder / name).write_bytes(raw)
    held[name] = labels, images
  return held


def test_cifar10_keeps_images_labels_and_its_own_split(tmp_path):
  held = write_cifar(tmp_path / 'cifar-10-batches-bin', CIFAR10, [10])
  train, test = data.load('cifar10', source='binary', data_dir=tmp_path, num_clients=4)
  assert (train.num_classes, train.scale) == (10, 1 / 255)
  assert (sizes(train).sum(), sizes(test).sum()) == (40, 12)
  truth = {
    image.tobytes(): label[0]
    for labels, images in held.values()
    for label, image in zip(labels, images, strict=True)
  }
  for split in (train, test):
    assert split.x.shape[1:] == (32, 32, 3)
    for image, label in zip(split.x, split.y, strict=True):
      assert truth[image.tobytes()] == label
  tested = {x.tobytes() for x in test.x}
  assert tested == {x.tobytes() for x in held['test_batch.bin'][1]}


@pytest.mark.parametrize(('labels', 'column', 'classes'), [
  ('fine', 1, 100), ('coarse', 0, 20),
])  # fmt: skip
def test_cifar100_has_fine_and_coarse_labels(tmp_path, labels, column, classes):
  counts = {'train.bin': 30, 'test.bin': 9}
  held = write_cifar(tmp_path / 'cifar-100-binary', counts, [20, 100])
  train, test = data.load(
    'cifar100', data_dir=tmp_path, num_clients=1, cifar100_labels=labels
  )
  assert train.num_classes == classes
  for split, name in ((train, 'train.bin'), (test, 'test.bin')):
    want = held[name][0][:, column]
    assert sorted(split.y.tolist()) == sorted(want.tolist())


def test_large_files_are_read_once_and_then_mapped(tmp_path, monkeypatch):
  monkeypatch.setattr(cache_module, 'MIN_CACHED_BYTES', 0)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  folder = tmp_path / 'cifar-10-batches-bin'
  write_cifar(folder, CIFAR10, [10])
  first, _ = data.load('cifar10', data_dir=tmp_path, num_clients=2)
  again, _ = data.load('cifar10', data_dir=tmp_path, num_clients=2)
  assert isinstance(again.x, StoredRows)
  np.testing.assert_array_equal(np.asarray(first.x), np.asarray(again.x))
  for path in folder.iterdir():
    path.unlink()
  folder.rmdir()
  write_cifar(folder, CIFAR10, [10], seed=1)
  changed, _ = data.load('cifar10', data_dir=tmp_path, num_clients=2)
  assert not np.array_equal(np.asarray(changed.x), np.asarray(again.x))


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda raw: raw[:-1], 'reshape'),
    (lambda raw: raw[:3073] + b'\x0a' + raw[3074:], 'data_batch_3'),
  ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
  folder = tmp_path / 'cifar-10-batches-bin'
  write_cifar(folder, CIFAR10, [10])
  path = folder / 'data_batch_3.bin'
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match=message):
    data.load('cifar10', data_dir=tmp_path)


def as_python(folder, target, columns, protocol=2, key=str):
  """Writes the files for Python that hold the same as the binary ones."""
  target.mkdir(parents=True)
  for name, (labels, images) in folder.items():
    held = dict(zip(columns, labels.T.tolist(), strict=True))
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    held |= {'data': pixels, 'batch_label': 'a batch', 'filenames': ['a.png']}
    raw = pickle.dumps({key(name): value for name, value in held.items()}, protocol)
    (target / name.removesuffix('.bin')).write_bytes(raw)


@pytest.mark.parametrize('key', [str, str.encode])
@pytest.mark.parametrize('protocol', [0, 2, 4, 5])
def test_files_for_python_hold_the_same_as_binary_ones(tmp_path, protocol, key):
  held = write_cifar(tmp_path / 'cifar-10-batches-bin', CIFAR10, [10])
  as_python(held, tmp_path / 'cifar-10-batches-py', ['labels'], protocol, key)
  counts = {'train.bin': 9, 'test.bin': 5}
  held = write_cifar(tmp_path / 'cifar-100-binary', counts, [20, 100])
  columns = ['coarse_labels', 'fine_labels']
  as_python(held, tmp_path / 'cifar-100-python', columns, protocol, key)
  cases = (
    ('cifar10', {}),
    ('cifar100', {}),
    ('cifar100', {'cifar100_labels': 'coarse'}),
  )
  for name, options in cases:
    binary, python = (
      data.load(name, data_dir=tmp_path, source=source, num_clients=2, **options)
      for source in ('binary', 'python')
    )
    for one, other in zip(binary, python, strict=True):
      np.testing.assert_array_equal(one.x, other.x)
      np.testing.assert_array_equal(one.y, other.y)
      assert one.num_classes == other.num_classes


def test_bad_files_for_python_are_named_and_run_nothing(tmp_path):
  folder = tmp_path / 'cifar-10-batches-py'
  held = write_cifar(tmp_path / 'cifar-10-batches-bin', CIFAR10, [10])
  as_python(held, folder, ['labels'])

  class Bad:
    def __reduce__(self):
      return (tmp_path / 'ran').touch, ()

  good = {'data': np.zeros((2, 3072), np.uint8), 'labels': [1, 2]}
  for change, message in (
    ({'labels': Bad()}, 'test_batch .*refused'),
    ({'labels': [1, 10]}, '10 is not in'),
    ({'data': {}}, 'test_batch'),
  ):
    (folder / 'test_batch').write_bytes(pickle.dumps(good | change))
    with pytest.raises(UserError, match=message):
      data.load('cifar10', data_dir=tmp_path, source='python')
  assert not (tmp_path / 'ran').exists()
