import gzip
import struct

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.base import FederatedData
from fesem_jax.data import mnist, partition
from fesem_jax.errors import UserError


def write_idx(path, array, zipped=True, magic=None):
  """Writes an array in idx format."""
  code = {np.dtype(np.uint8): 8, np.dtype('>i4'): 0x0C}[array.dtype]
  header = magic if magic is not None else bytes([0, 0, code, array.ndim])
  raw = header + struct.pack(f'>{array.ndim}I', *array.shape) + array.tobytes()
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


def sizes(split):
  return np.asarray(split.sizes())


def rows_as_set(split):
  return [x.tobytes() for x in np.asarray(split.x)]


def test_from_arrays_checks_its_input():
  x, y = np.zeros((3, 2)), np.array([0, 1, 2])
  with pytest.raises(
    ValueError, match='3 examples, 3 labels and client sizes that sum to 4'
  ):
    FederatedData.from_arrays(x, y, [1, 3])
  with pytest.raises(ValueError, match=r'Labels must lie in 0..1; found 0..2'):
    FederatedData.from_arrays(x, y, [3], num_classes=2)
  with pytest.raises(ValueError, match='not finite'):
    FederatedData.from_arrays(x * np.nan, y, [3])


def test_reorder_moves_whole_clients():
  x = np.arange(6, dtype=np.float32)[:, None]
  split = FederatedData.from_arrays(x, np.arange(6) % 2, [1, 3, 2])
  other = split.reorder(np.array([2, 0, 1]), num_clients=5)
  assert sizes(other).tolist() == [2, 1, 3, 0, 0]
  assert other.client(0)[0].ravel().tolist() == [4, 5]
  assert other.client(2)[0].ravel().tolist() == [1, 2, 3]
  assert other.client_ids.tolist() == [2, 0, 1, 3, 4]
  assert other.info.names.tolist() == ['2', '0', '1']


@pytest.mark.parametrize('name', [p for p in partition.NAMES if p != 'natural'])
def test_partitions_of_digits_are_seeded_and_split_80_20(name):
  load = lambda seed: data.load('digits', partition=name, num_clients=20, seed=seed)
  (train, test), (again, _), (other, _) = load(0), load(0), load(1)
  assert train.num_clients == test.num_clients == 20
  np.testing.assert_array_equal(train.x, again.x)
  assert train.x.shape != other.x.shape or (train.x != other.x).any()
  assert sizes(train).min() >= 1
  total = sizes(train) + sizes(test)
  assert (np.abs(sizes(train) - 0.8 * total) <= 0.5).all()
  copies = 4 if name == 'rotated' or name == 'label_permuted' else 1
  assert total.sum() == copies * 1797
  assert train.x.dtype == np.uint8
  assert train.scale == 1 / 16
  if copies == 1:  # Nothing is in two places.
    pixels = rows_as_set(train) + rows_as_set(test)
    assert len(set(pixels)) == len(set(rows_as_set(train))) + len(
      set(rows_as_set(test))
    )


def test_rotated_groups_hold_turned_images():
  train, _ = data.load('digits', partition='rotated', num_clients=8, seed=0)
  originals = {x.tobytes() for x in data.digits.load().x}
  for i in range(8):
    group = train.info.clusters[i]
    x, _ = train.client(i)
    back = np.rot90(x, -group, axes=(1, 2))
    assert all(image.tobytes() in originals for image in back)
  np.testing.assert_array_equal(np.bincount(train.info.clusters), [2, 2, 2, 2])


@pytest.mark.parametrize('partition_of', ['rotated', 'label_permuted'])
def test_one_group_changes_nothing_and_seven_are_seven(partition_of):
  load = lambda k: data.load(
    'digits', partition=partition_of, num_clients=14, partition_groups=k
  )
  (one, _), (seven, _) = load(1), load(7)
  pool = data.digits.load()
  truth = {x.tobytes(): y for x, y in zip(pool.x, pool.y, strict=True)}
  assert all(truth[x.tobytes()] == y for x, y in zip(one.x, one.y, strict=True))
  assert one.info.clusters.tolist() == [0] * 14
  assert seven.info.clusters.tolist() == list(range(7)) * 2
  assert sizes(seven).sum() == pytest.approx(7 * 0.8 * 1797, rel=0.01)


def test_one_client_alone_holds_everything():
  train, test = data.load('digits', num_clients=1, partition='dirichlet')
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([1438], [359])


def test_groups_are_disjoint_on_request():
  total = lambda disjoint: sum(
    sizes(s).sum()
    for s in data.load(
      'digits', partition='rotated', num_clients=8, disjoint_groups=disjoint
    )
  )
  assert total(True) == 1797
  assert total(False) == 4 * 1797


def test_label_permuted_groups_relabel_consistently():
  train, _ = data.load('digits', partition='label_permuted', num_clients=8)
  pool = data.digits.load()
  truth = {x.tobytes(): y for x, y in zip(pool.x, pool.y, strict=True)}
  maps = []
  for group in range(4):
    mapping = {}
    for i in np.flatnonzero(train.info.clusters == group):
      for x, y in zip(*train.client(i), strict=True):
        assert mapping.setdefault(truth[x.tobytes()], y) == y
    maps.append(tuple(mapping[c] for c in range(10)))
  assert maps[0] == tuple(range(10))
  assert len(set(maps)) == 4


def test_shards_hold_few_classes_and_dirichlet_skews():
  def skew(**options):
    train, _ = data.load('digits', num_clients=30, **options)
    labels = [train.client(i)[1] for i in range(30)]
    shares = [np.bincount(y, minlength=10) / len(y) for y in labels]
    return np.abs(np.array(shares) - 0.1).sum(axis=1).mean()

  train, _ = data.load(
    'digits', partition='shards', num_clients=20, classes_per_client=2
  )
  assert (
    max(len(set(train.client(i)[1])) for i in range(20)) <= 4
  )  # A shard may straddle.
  assert (
    skew(partition='dirichlet', dirichlet_alpha=0.1)
    > skew(partition='dirichlet', dirichlet_alpha=100.0)
    > skew(partition='iid') - 0.2
  )
  assert skew(partition='dirichlet', dirichlet_alpha=0.1) > 1.0


@pytest.mark.parametrize('alpha', [1e-300, 1e-9, 0.02, 1e300])
def test_dirichlet_never_leaves_a_training_split_empty(alpha):
  train, test = data.load(
    'digits', partition='dirichlet', num_clients=300, dirichlet_alpha=alpha
  )
  total = sizes(train) + sizes(test)
  assert sizes(train).min() >= 1
  assert total.sum() == 1797
  # Each class goes to one client, or to all alike.
  assert (total > 2).sum() <= 10 if alpha < 1e-8 else total.max() < 800
  assert alpha < 1 or total.max() <= 2 * 1797 / 300


def test_rotation_by_other_angles_interpolates():
  x = np.zeros((1, 9, 9), np.uint8)
  x[0, 4, :] = 200
  turned = partition.rotate(x, 1, 8)  # 45 degrees.
  assert turned.shape == x.shape
  assert turned[0, 2, 6] > 100 or turned[0, 2, 2] > 100
  np.testing.assert_array_equal(partition.rotate(x, 2, 8), np.rot90(x, 1, axes=(1, 2)))


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
  assert (sizes(train) + sizes(test)).tolist() == [14] * 6
  assert sizes(train).tolist() == [11] * 6
  few, _ = data.load(
    'mnist_writers', data_dir=folder, num_clients=3, examples_per_client=4
  )
  assert sizes(few).tolist() == [4] * 3


def corrupt(folder, kind):
  images = folder / 'mnist' / 'train-images-idx3-ubyte.gz'
  labels = folder / 'mnist' / 'train-labels-idx1-ubyte'
  qmnist = folder / 'qmnist' / 'qmnist-train-labels-idx2-int'
  if kind == 'missing':
    images.unlink()
  elif kind == 'cut gzip':
    images.write_bytes(images.read_bytes()[:-2000])
  elif kind == 'not gzip':
    images.write_bytes(b'\x1f\x8b' + bytes(100))
  elif kind == 'truncated':
    labels.write_bytes(labels.read_bytes()[:-3])
  elif kind == 'cut header':
    labels.write_bytes(labels.read_bytes()[:6])
  elif kind == 'magic':
    labels.write_bytes(b'\0\0\x09\x01' + labels.read_bytes()[4:])
  elif kind == 'swapped':
    labels.write_bytes(gzip.decompress(images.read_bytes()))
  elif kind == 'lengths':
    write_idx(labels, np.zeros(59, np.uint8), zipped=False)
  elif kind == 'labels':
    write_idx(labels, np.full(60, 11, np.uint8), zipped=False)
  elif kind == 'negative labels':
    write_idx(labels, np.full(60, -1, '>i4'), zipped=False)
  elif kind in ('no rows', 'wrapping', 'wrapping to nothing'):
    shape = {'no rows': (60, 0, 4), 'wrapping': (2**31, 2**31, 4)}.get(
      kind, (2**32 - 1, 0, 2**32 - 1)
    )
    header = b'\0\0\x08\x03' + struct.pack('>3I', *shape)
    write_idx(images.with_suffix(''), np.zeros(0, np.uint8), False, header[:-4])
    images.with_suffix('').write_bytes(header)
    images.unlink()
  elif kind == 'integers':
    write_idx(images.with_suffix(''), np.zeros((60, 4, 4), '>i4'), zipped=False)
  elif kind == 'other labels':
    table = np.zeros((60, 8), '>i4')
    write_idx(qmnist, table)
  elif kind == 'short table':
    write_idx(qmnist, np.zeros((50, 8), '>i4'))


@pytest.mark.parametrize(
  ('kind', 'message'),
  [
    ('missing', r'train-images-idx3-ubyte\[.gz\] does not exist.*`data_dir`'),
    ('cut gzip', r'train-images-idx3-ubyte.gz is damaged'),
    ('not gzip', r'train-images-idx3-ubyte.gz is damaged'),
    ('truncated', r'train-labels-idx1-ubyte is truncated.*65 bytes.*announces 68'),
    ('cut header', r'train-labels-idx1-ubyte is truncated: its header'),
    ('magic', r'train-labels-idx1-ubyte has magic number 0x00000901'),
    ('swapped', r'train-labels-idx1-ubyte has magic number 0x00000803'),
    ('lengths', r'holds 60 images, but .*train-labels-idx1-ubyte holds 59 labels'),
    ('labels', r'holds label 11; digits are 0..9'),
    ('negative labels', r'holds label -1; digits are 0..9'),
    ('no rows', r'images-idx3-ubyte holds nothing: its shape is \(60, 0, 4\)'),
    ('wrapping', r'16 bytes where its header announces 18446744073709551632'),
    ('wrapping to nothing', r'holds nothing: its shape is \(4294967295, 0, 4294967295'),
    ('integers', r'images-idx3-ubyte holds 32-bit integers; images are of bytes'),
    ('other labels', r'qmnist-train.*does not match MNIST: \d+ labels differ'),
    ('short table', r'qmnist-train.*has shape \(50, 8\)'),
  ],
)
def test_damaged_files_are_named(folder, kind, message):
  corrupt(folder, kind)
  with pytest.raises(UserError, match=message):
    data.load('mnist_writers', data_dir=folder)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'name': 'svhn'}, '`name=svhn` is unknown; choose one of digits'),
        ({'partition': 'spiral'}, '`partition=spiral` is unknown.*natural, iid'),
        ({'partition': 'natural'}, 'digits` has no clients of its own'),
        ({'num_clients': -1}, '`num_clients=-1` must be at least 0'),
        ({'num_clients': 1000}, 'leaves a client with 1 of 1797 examples'),
        ({'num_clients': 100, 'examples_per_client': 50}, 'needs more than the 1797'),
        ({'partition': 'dirichlet', 'num_clients': 900}, 'too few for 900 clients'),
        ({'partition': 'dirichlet', 'dirichlet_alpha': 0.0}, '`dirichlet_alpha=0.0`'),
        ({'partition': 'rotated', 'num_clients': 3}, 'fewer than `partition_groups=4`'),
        ({'partition': 'shards', 'num_clients': 1000}, 'leaves a client with'),
        ({'num_clients': 10**12}, '`num_clients=1000000000000` must be at most'),
        ({'num_clients': 10**6}, '`num_clients=1000000` is more than the 1797'),
        ({'classes_per_client': 10**9}, '`classes_per_client=1000000000` is more than'),
        ({'partition_groups': 10**9}, '`partition_groups=1000000000` must be at most'),
        ({'dirichlet_alpha': np.nan}, '`dirichlet_alpha=nan` must be positive'),
        ({'dirichlet_alpha': 1e308}, r'`dirichlet_alpha=1e\+308` .* at most 1e\+300'),
        ({'examples_per_client': 10**12}, 'needs more than the 1797 examples'),
        ({'seed': -1}, '`seed=-1` must be at least 0'),
    ],
)  # fmt: skip
def test_impossible_options_are_named(options, message):
  with pytest.raises(UserError, match=message):
    data.load(**{'name': 'digits', 'partition': 'iid'} | options)


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


def test_unseen_clients_are_whole_and_keep_their_ids():
  train, test = data.load('digits', partition='rotated', num_clients=12)
  (seen, seen_test), (unseen, unseen_test) = data.hold_out_clients(train, test, 0.25, 1)
  assert (seen.num_clients, unseen.num_clients) == (9, 3)
  ids = np.concatenate([seen.client_ids, unseen.client_ids])
  np.testing.assert_array_equal(np.sort(ids), np.arange(12))
  for part, whole in ((seen, train), (unseen, train), (unseen_test, test)):
    for i, name in enumerate(part.info.names):
      was = int(np.flatnonzero(whole.info.names == name)[0])
      assert part.client_ids[i] == whole.client_ids[was]
      np.testing.assert_array_equal(part.client(i)[0], whole.client(was)[0])
  np.testing.assert_array_equal(seen.client_ids, seen_test.client_ids)
  (again, _), _ = data.hold_out_clients(train, test, 0.25, 1)
  np.testing.assert_array_equal(seen.client_ids, again.client_ids)
  for fraction in (0.01, 1.0, -1.0, 1e308, np.inf, np.nan):
    with pytest.raises(UserError, match='`fraction='):
      data.hold_out_clients(train, test, fraction)


def test_hold_out_parts_every_clients_training_examples():
  x = np.arange(40, dtype=np.float32).reshape(20, 2)
  train = FederatedData.from_arrays(
    x, np.arange(20) % 3, np.array([10, 1, 9]), client_ids=np.array([7, 3, 5])
  )
  kept, held = data.hold_out(train, seed=1)
  assert kept.sizes().tolist() == [8, 1, 7]
  assert held.sizes().tolist() == [2, 0, 2]
  for i in range(3):
    rows = np.concatenate([kept.client(i)[0], held.client(i)[0]])
    np.testing.assert_array_equal(np.sort(rows, axis=0), train.client(i)[0])
    np.testing.assert_array_equal(kept.client_ids, train.client_ids)
  again, _ = data.hold_out(train, seed=1)
  np.testing.assert_array_equal(again.x, kept.x)
  other, _ = data.hold_out(train, seed=2)
  assert not np.array_equal(other.x, kept.x)
