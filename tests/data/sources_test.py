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


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('svhn', {}, '`name=svhn`'),
    ('mnist_writers', {}, 'qmnist'),
    ('femnist', {'source': 'idx'}, '`source=idx`'),
    ('femnist', {'background': 'red'}, '^background: '),
    ('tfds', {'tfds_name': 'no_such'}, '`tfds_name=no_such`'),
    ('cifar100', {'cifar100_labels': 'all'}, '^cifar100_labels: '),
    ('synthetic', {'synthetic_alpha': np.inf}, '`synthetic_alpha=inf`'),
    ('synthetic', {'synthetic_beta': -1.0}, '`synthetic_beta=-1.0`'),
    ('synthetic', {'num_clients': -1}, '`num_clients=-1`'),
    ('synthetic_linear', {'num_clients': 2}, '2 clients'),
    ('digits', {'min_examples': 5}, '`min_examples`'),
    ('digits', {'dirichlet_alpha': np.inf}, '`dirichlet_alpha=inf`'),
    ('npz:' + 'a' * 5000, {}, 'File name too long'),
    ('mnist', {'data_dir': 'a' * 5000}, '`data_dir'),
  ],
)  # fmt: skip
def test_wrong_choices_are_named(tmp_path, name, options, message):
  (tmp_path / 'leaf_femnist').mkdir()
  with pytest.raises(UserError, match=message):
    data.load(name, **{'data_dir': tmp_path} | options)
