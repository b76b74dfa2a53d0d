"""Data sets of the Hugging Face hub, in the shapes that its files have."""

import io

import numpy as np
import pytest
from PIL import Image

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import (
  WRITERS,
  contents,
  write_hub,
  write_hub_celeba,
  writers,
)


def test_celeba_of_the_hub_pools_its_splits(tmp_path):
  write_hub_celeba(tmp_path / 'flwrlabs' / 'celeba')
  train, test = data.load('celeba', data_dir=tmp_path)
  assert train.info.names.tolist() == ['3', '7', '12']
  assert train.x.shape == (15, 84, 84, 3)
  assert np.asarray(test.sizes()).tolist() == [1, 1, 1]
  assert train.num_classes == 2
  both = np.concatenate([train.y, test.y])
  assert sorted(both.tolist()) == [0] * 9 + [1] * 9


def test_femnist_of_the_hub_is_split_80_20(tmp_path):
  clients = writers()
  write_hub(tmp_path / 'flwrlabs' / 'femnist', clients)
  train, test = data.load('femnist', data_dir=tmp_path)
  assert train.num_classes == 62
  for name, (x, y) in contents(train).items():
    rest = contents(test)[name]
    whole = [*zip(x, y, strict=True), *zip(*rest, strict=True)]
    have = sorted((a.tobytes(), int(b)) for a, b in whole)
    want = [pair for part in clients[name] for pair in zip(*part, strict=True)]
    assert have == sorted((a.tobytes(), int(b)) for a, b in want)
    assert len(rest[1]) == max(1, round(0.2 * len(want)))


def test_any_hub_set_by_its_columns(tmp_path):
  write_hub(tmp_path / 'me' / 'mine', writers())
  options = {'data_dir': tmp_path, 'hub_name': 'me/mine'}
  train, _ = data.load('hub', hub_client_column='writer_id', **options)
  assert train.info.names.tolist() == sorted(WRITERS)
  with pytest.raises(UserError, match='`hub_client_column=writer`'):
    data.load('hub', hub_client_column='writer', **options)
  train, test = data.load('hub', num_clients=2, **options)
  assert (len(train.y), len(test.y)) == (12, 3)
  with pytest.raises(UserError, match='`hub_label_column=y`'):
    data.load('hub', hub_client_column='writer_id', hub_label_column='y', **options)


@pytest.mark.parametrize('name', ['hub', 'table'])
def test_files_that_number_classes_differently_are_refused(tmp_path, name):
  datasets = pytest.importorskip('datasets')
  folder = tmp_path / 'me' / 'mine'
  folder.mkdir(parents=True)
  image = Image.fromarray(np.zeros((5, 5), np.uint8))
  for split, labels in (('train', ['ant', 'bee', 'cat']), ('test', ['cat', 'ant'])):
    x = {'hub': [image] * len(labels), 'table': [0.5, 0.25, 0.125][: len(labels)]}
    held = datasets.Dataset.from_dict({'x': x[name], 'y': labels})
    held.class_encode_column('y').to_parquet(folder / f'{split}.parquet')
  options = {'data_dir': tmp_path, 'hub_name': 'me/mine'} if name == 'hub' else {}
  with pytest.raises(UserError, match='column y'):
    data.load('hub' if name == 'hub' else f'table:{folder}', num_clients=1, **options)


@pytest.mark.parametrize(('labels', 'classes'), [('fine', 100), ('coarse', 20)])
def test_cifar_of_the_hub_keeps_its_split(tmp_path, labels, classes):
  datasets = pytest.importorskip('datasets')
  rng = np.random.default_rng(0)
  features = datasets.Features(
    {
      'img': datasets.Image(),
      'fine_label': datasets.ClassLabel(num_classes=100),
      'coarse_label': datasets.ClassLabel(num_classes=20),
    }
  )
  (tmp_path / 'uoft-cs' / 'cifar100' / 'cifar100').mkdir(parents=True)
  wanted = {}
  for split, count in (('train', 12), ('test', 6)):
    images = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    columns = {
      'img': [Image.fromarray(image) for image in images],
      'fine_label': rng.integers(0, 100, count).tolist(),
      'coarse_label': rng.integers(0, 20, count).tolist(),
    }
    folder = tmp_path / 'uoft-cs' / 'cifar100' / 'cifar100'
    held = datasets.Dataset.from_dict(columns, features=features)
    held.to_parquet(folder / f'{split}-00000-of-00001.parquet')
    pairs = zip(images, columns[f'{labels}_label'], strict=True)
    wanted[split] = sorted((x.tobytes(), y) for x, y in pairs)
  train, test = data.load(
    'cifar100', source='hub', data_dir=tmp_path, num_clients=1, cifar100_labels=labels
  )
  assert train.num_classes == classes
  for split, name in ((train, 'train'), (test, 'test')):
    got = [(x.tobytes(), int(y)) for x, y in zip(split.x, split.y, strict=True)]
    assert sorted(got) == wanted[name]


@pytest.mark.parametrize(
  ('mode', 'shade', 'wanted'), [('1', 1, 255), ('L', 200, 200), ('I;16', 40000, None)]
)
def test_hub_images_of_other_modes(tmp_path, mode, shade, wanted):
  datasets = pytest.importorskip('datasets')
  image = io.BytesIO()
  Image.new(mode, (8, 8), shade).save(image, 'png')
  features = datasets.Features(
    {
      'image': datasets.Image(),
      'label': datasets.Value('int64'),
      'who': datasets.Value('string'),
    }
  )
  columns = {
    'image': [{'bytes': image.getvalue(), 'path': None}] * 4,
    'label': [0, 1, 1, 0],
    'who': ['a', 'a', 'b', 'b'],
  }
  held = datasets.Dataset.from_dict(columns, features=features)
  held.save_to_disk(str(tmp_path / 'me' / 'mine'))
  options = {
    'data_dir': tmp_path, 'hub_name': 'me/mine', 'hub_client_column': 'who',
    'hub_label_column': 'label',
  }  # fmt: skip
  if wanted is None:
    with pytest.raises(UserError, match='mode I;16'):
      data.load('hub', **options)
    return
  train, _ = data.load('hub', **options)
  assert train.x.dtype == np.uint8
  assert train.x.shape == (2, 8, 8)
  assert (train.x == wanted).all()


def write_images(folder, images, **columns):
  datasets = pytest.importorskip('datasets')
  folder.mkdir(parents=True)
  held = datasets.Dataset.from_dict({'img': images} | columns)
  held.to_parquet(folder / 'train-00000-of-00001.parquet')


def test_labels_that_are_names(tmp_path):
  images = [Image.fromarray(np.full((8, 8), i, np.uint8)) for i in range(8)]
  kind = ['dog', 'cat', 'cat', 'eel'] * 2
  write_images(tmp_path / 'me' / 'mine', images, kind=kind, who=['a', 'b'] * 4)
  options = {'data_dir': tmp_path, 'hub_name': 'me/mine', 'hub_label_column': 'kind'}
  for clients in ({'hub_client_column': 'who'}, {'num_clients': 2}):
    train, test = data.load('hub', **options, **clients)
    assert train.info.class_names == ('cat', 'dog', 'eel')
    for split in (train, test):
      for image, label in zip(split.x, split.y, strict=True):
        assert train.info.class_names[label] == kind[image[0, 0]]


@pytest.mark.parametrize('layout', ['{0}/train-0.parquet', '{0}/train/0000.parquet'])
def test_one_of_several_configurations(tmp_path, layout):
  datasets = pytest.importorskip('datasets')
  for i, config in enumerate(('small', 'large')):
    path = tmp_path / 'me' / 'mine' / layout.format(config)
    path.parent.mkdir(parents=True)
    images = [Image.fromarray(np.full((8, 8), i, np.uint8))] * 8
    held = datasets.Dataset.from_dict({'img': images, 'kind': ['a', 'b'] * 4})
    held.to_parquet(path)
  options = {
    'data_dir': tmp_path, 'hub_name': 'me/mine', 'hub_label_column': 'kind',
    'num_clients': 2,
  }  # fmt: skip
  train, _ = data.load('hub', hub_config='large', **options)
  assert (np.unique(train.x).tolist(), len(train.y)) == ([1], 6)


def test_gray_images_among_colored_ones_become_colored(tmp_path):
  colored = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
  images = [Image.fromarray(colored[..., 0]), Image.fromarray(colored)] * 2
  write_images(tmp_path / 'me' / 'mine', images, y=[0, 1] * 2)
  train, test = data.load(
    'hub', data_dir=tmp_path, hub_name='me/mine', hub_label_column='y', num_clients=1
  )
  for x, y in zip([*train.x, *test.x], [*train.y, *test.y], strict=True):
    np.testing.assert_array_equal(x, colored if y else colored[..., [0, 0, 0]])


def test_one_side_for_all_images(tmp_path):
  images = [Image.new('RGB', size, 'red') for size in ((90, 83), (90, 85), (5, 7)) * 2]
  write_images(tmp_path / 'me' / 'mine', images, y=[0, 1, 2] * 2)
  options = {'data_dir': tmp_path, 'hub_name': 'me/mine', 'hub_label_column': 'y'}
  with pytest.raises(UserError, match='`hub_image_side`'):
    data.load('hub', **options)
  train, _ = data.load('hub', hub_image_side=16, num_clients=1, **options)
  assert train.x.shape[1:] == (16, 16, 3)
  assert (train.x == (255, 0, 0)).all()
  with pytest.raises(UserError, match='`hub_image_side=-1`'):
    data.load('hub', hub_image_side=-1, **options)


@pytest.mark.parametrize(
  ('who', 'shown'),
  [([10, 9, None, 2] * 2, 'None'), ([1.0, 2.0, np.nan, 3.0] * 2, 'nan'),
   (['a', 'b', '', 'c'] * 2, 'empty')],
)  # fmt: skip
def test_missing_clients_are_no_clients(tmp_path, who, shown):
  images = [Image.fromarray(np.full((8, 8), i, np.uint8)) for i in range(8)]
  write_images(tmp_path / 'me' / 'mine', images, y=[0, 1] * 4, who=who)
  with pytest.raises(UserError, match=f'who of row 2 is {shown}'):
    data.load(
      'hub', data_dir=tmp_path, hub_name='me/mine', hub_label_column='y',
      hub_client_column='who',
    )  # fmt: skip
