"""TensorFlow Datasets are read without TensorFlow or a network."""

import io

import numpy as np
import pytest
from PIL import Image

from fesem_jax import data
from fesem_jax.utils.errors import UserError


def prepare_tfds(tfds, folder, named, version, num_classes, splits, config=''):
  """Writes a set as TFDS prepares it, in array_record."""
  image, _ = splits['train'][0]
  features = tfds.features.FeaturesDict(
    {
      'image': tfds.features.Image(shape=(*image.shape, 1)[:3]),
      'label': tfds.features.ClassLabel(num_classes=num_classes),
      'coarse_label': tfds.features.ClassLabel(num_classes=20),
    }
  )

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name = named
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split):
      for i, (image, label) in enumerate(splits[split]):
        png = io.BytesIO()
        Image.fromarray(image).save(png, 'png')
        labels = {'label': label, 'coarse_label': max(0, 19 - label)}
        yield i, {'image': png.getvalue(), **labels}

  Builder(data_dir=folder, file_format='array_record').download_and_prepare()


def test_tfds_is_read_offline_without_tensorflow(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  rng = np.random.default_rng(0)
  splits = {
    split: [
      (rng.integers(0, 256, (28, 28)).astype(np.uint8), i % 10) for i in range(count)
    ]
    for split, count in (('train', 40), ('test', 20))
  }
  folder = tmp_path / 'tfds'
  prepare_tfds(tfds, folder, 'fashion_mnist', '3.0.1', 10, splits)
  prepare_tfds(tfds, folder, 'emnist', '3.1.0', 62, splits, config='byclass')
  extra = splits | {'extra': splits['test']}
  prepare_tfds(tfds, folder, 'toy', '1.0.0', 10, extra)
  train, test = data.load('fashion_mnist', data_dir=tmp_path, num_clients=4)
  assert train.num_clients == 4
  assert (train.num_classes, len(train.y), len(test.y)) == (10, 40, 20)

  def flat(part):
    return sorted(x.tobytes() for x, _ in splits[part])

  assert sorted(x.tobytes() for x in train.x) == flat('train')
  assert sorted(x.tobytes() for x in test.x) == flat('test')
  emnist, _ = data.load('emnist', data_dir=tmp_path, num_clients=2)
  assert emnist.num_classes == 62
  upright = sorted(x.T.tobytes() for x, _ in splits['train'])
  assert sorted(x.tobytes() for x in emnist.x) == upright
  named, _ = data.load('tfds', data_dir=tmp_path, tfds_name='toy', num_clients=2)
  assert len(named.y) == 40


@pytest.mark.parametrize('least', [0, 1])
def test_letters_of_tfds_are_26_classes_from_0(tmp_path, least):
  tfds = pytest.importorskip('tensorflow_datasets')
  rng = np.random.default_rng(0)
  images = [rng.integers(0, 256, (28, 28)).astype(np.uint8) for _ in range(26)]
  examples = [(image, i + least) for i, image in enumerate(images)]
  splits = {'train': examples, 'test': examples}
  prepare_tfds(tfds, tmp_path / 'tfds', 'emnist', '3.1.0', 37, splits, 'letters')
  options = {'data_dir': tmp_path, 'num_clients': 1, 'emnist_split': 'letters'}
  if not least:
    with pytest.raises(UserError, match='emnist'):
      data.load('emnist', **options)
    return
  by_name = {
    'data_dir': tmp_path,
    'num_clients': 1,
    'tfds_name': 'EMNIST/letters:3.1.0',
  }
  of_image = {x.T.tobytes(): i for i, x in enumerate(images)}
  for train, _ in (data.load('emnist', **options), data.load('tfds', **by_name)):
    assert train.num_classes == 26
    assert [of_image[x.tobytes()] for x in train.x] == train.y.tolist()


def test_cifar100_of_tfds_has_fine_and_coarse_labels(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  rng = np.random.default_rng(0)
  splits = {
    split: [(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8), i) for i in range(9)]
    for split in ('train', 'test')
  }
  prepare_tfds(tfds, tmp_path / 'tfds', 'cifar100', '3.0.2', 100, splits)
  options = {'data_dir': tmp_path, 'num_clients': 1}
  fine, _ = data.load('cifar100', **options)
  coarse, _ = data.load('cifar100', cifar100_labels='coarse', **options)
  assert (fine.num_classes, coarse.num_classes) == (100, 20)
  assert sorted(fine.y.tolist()) == list(range(9))
  of_image = {x.tobytes(): y for x, y in zip(fine.x, fine.y, strict=True)}
  for x, y in zip(coarse.x, coarse.y, strict=True):
    assert y == 19 - of_image[x.tobytes()]
