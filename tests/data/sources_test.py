"""Every source gives the same data; wrong choices and hostile files are named."""

import numpy as np
import pytest
from PIL import Image

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import (
  FEMNIST,
  WRITERS,
  assert_same,
  write_hdf5,
  write_leaf,
  writers,
)


@pytest.mark.parametrize('shape', FEMNIST)
def test_every_shape_of_femnist_loads_to_the_same_data(tmp_path, shape):
  write, source = FEMNIST[shape]
  clients = writers()
  write(tmp_path, clients)
  for chosen in ('', source):
    train, test = data.load('femnist', data_dir=tmp_path, source=chosen)
    assert train.info.names.tolist() == sorted(WRITERS)
    assert (train.num_classes, train.scale) == (62, 1 / 255)
    assert_same(train, {n: a for n, (a, _) in clients.items()})
    assert_same(test, {n: b for n, (_, b) in clients.items()})
  black, _ = data.load('femnist', data_dir=tmp_path, background='black')
  np.testing.assert_array_equal(black.x, 255 - train.x)


def test_an_empty_test_split_is_named(tmp_path):
  empty = {
    name: (train, (test[0][:0], test[1][:0]))
    for name, (train, test) in writers().items()
  }
  write_leaf(tmp_path / 'leaf_femnist', empty)
  with pytest.raises(UserError, match='leaf_femnist holds no test examples'):
    data.load('femnist', data_dir=tmp_path)
  write_hdf5(tmp_path / 'tff_femnist', empty)
  with pytest.raises(UserError, match='tff_femnist holds no test examples'):
    data.load('femnist', data_dir=tmp_path, source='tff')


def test_no_path_of_the_hub_is_followed(tmp_path):
  datasets = pytest.importorskip('datasets')
  import pyarrow.parquet

  secret = tmp_path / 'secret.png'
  Image.fromarray(np.full((28, 28), 77, np.uint8)).save(secret)
  features = datasets.Features(
    {
      'image': datasets.Image(),
      'label': datasets.ClassLabel(num_classes=2),
      'who': datasets.Value('string'),
    }
  )
  held = datasets.Dataset.from_dict(
    {'image': [str(secret)] * 4, 'label': [0, 1] * 2, 'who': ['a', 'b'] * 2},
    features=features,
  )
  (tmp_path / 'me' / 'mine').mkdir(parents=True)
  table = held.data.table  # As it is; `save_to_disk` would embed the image.
  pyarrow.parquet.write_table(table, tmp_path / 'me' / 'mine' / 'train.parquet')
  with pytest.raises(UserError, match='image 0 is a path to a file elsewhere'):
    data.load('hub', data_dir=tmp_path, hub_name='me/mine', hub_client_column='who')


def test_without_network_the_sentence_says_so(tmp_path, monkeypatch):
  def refuse(*args):
    raise OSError('no network')

  monkeypatch.setattr('socket.getaddrinfo', refuse)
  (tmp_path / 'tfds').mkdir()
  with pytest.raises(UserError, match=r'cifar10 is not prepared in .*no network'):
    data.load('cifar10', data_dir=tmp_path)
  pytest.importorskip('datasets')
  with pytest.raises(
    UserError,
    match=r'holds no leaf_celeba/ or celeba/.*there is no network to download flwrlabs',
  ):
    data.load('celeba', data_dir=tmp_path)


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('svhn', {}, '`name=svhn` is unknown.*leaf:FOLDER, npz:FILE, table:FILE'),
    ('mnist_writers', {}, 'holds no qmnist/; point `data_dir'),
    ('femnist', {'source': 'idx'},
     '`source=idx` does not exist.*one of leaf, tff, tff_digits, hub'),
    ('digits', {'background': 'black'}, '`background` does not apply to .*digits'),
    ('femnist', {'background': 'red'}, '`background=red` is unknown'),
    ('tfds', {}, '`name=tfds` needs `tfds_name`'),
    ('tfds', {'tfds_name': 'no_such'}, '`tfds_name=no_such`.*Dataset no_such not f'),
    ('cifar10', {'cifar100_labels': 'coarse'}, '`cifar100_labels` does not apply'),
    ('cifar100', {'cifar100_labels': 'all'}, '`cifar100_labels=all` is unknown; choo'),
    ('hub', {}, '`name=hub` needs `hub_name=OWNER/NAME`'),
    ('synthetic', {'tfds_name': 'x'}, '`tfds_name` does not apply'),
    ('synthetic', {'synthetic_alpha': np.inf}, '`synthetic_alpha=inf` must be at l'),
    ('synthetic', {'synthetic_beta': -1.0}, '`synthetic_beta=-1.0` must be at least'),
    ('synthetic', {'num_clients': -1}, '`num_clients=-1` must be at least 0'),
    ('synthetic_linear', {'num_clients': 2}, '2 clients .* fewer than `partition_g'),
    ('tfds', {'tfds_name': 'mnist:9.9.9'}, '`tfds_name=mnist:9.9.9` is damaged or'),
    ('digits', {'min_examples': 5}, '`min_examples` chooses natural clients'),
    ('digits', {'dirichlet_alpha': np.inf}, '`dirichlet_alpha=inf` must be positive'),
    ('synthetic', {'synthetic_alpha': np.nan}, '`synthetic_alpha=nan` must be at lea'),
    ('synthetic', {'synthetic_beta': 1e308}, r'`synthetic_beta=1e\+308` must be at l'),
    ('synthetic', {'num_clients': 10**7}, '10000000 clients .* about 450 examples'),
    ('synthetic_linear', {'examples_per_client': 10**12}, 'clients .* lower one of'),
    ('npz:' + 'a' * 5000, {}, 'is damaged or not what it should be .*File name too l'),
    ('mnist', {'data_dir': 'a' * 5000}, '`data_dir=a.*File name too long'),
  ],
)  # fmt: skip
def test_wrong_choices_are_named(tmp_path, name, options, message):
  (tmp_path / 'leaf_femnist').mkdir()
  with pytest.raises(UserError, match=message):
    data.load(name, **{'data_dir': tmp_path} | options)
