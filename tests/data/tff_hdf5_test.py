"""TensorFlow Federated's fed_cifar100 and shakespeare load to what was written."""

import h5py
import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import shakespeare
from tests.support.sources import contents, sizes


def write_cifar(folder, clients=(12, 3), count=5, **changes):
  """Files of numbered clients; returns images -> (client, fine, coarse label)."""
  rng = np.random.default_rng(0)
  folder.mkdir(parents=True)
  held = {}
  for split, number in zip(('train', 'test'), clients, strict=True):
    with h5py.File(folder / f'fed_cifar100_{split}.h5', 'w') as file:
      for client in range(number):
        x = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        fine, coarse = rng.integers(0, 100, count), rng.integers(0, 20, count)
        group = file.create_group(f'examples/{client}')
        arrays = {'image': x, 'label': fine, 'coarse_label': coarse}
        for name, values in (arrays | changes).items():
          group[name] = values
        for image, *labels in zip(x, fine, coarse, strict=True):
          held[image.tobytes()] = f'{split}_{client:03d}', *labels
  return held


@pytest.mark.parametrize(('labels', 'classes'), [('fine', 100), ('coarse', 20)])
def test_cifar100_has_training_and_test_clients(tmp_path, labels, classes):
  held = write_cifar(tmp_path / 'tff_cifar100')
  splits = data.load('cifar100', data_dir=tmp_path, cifar100_labels=labels)
  names = sorted({name for name, *_ in held.values()})
  assert len(names) == 15
  place = 1 if labels == 'fine' else 2
  for split, count in zip(splits, (4, 1), strict=True):
    assert split.info.names.tolist() == names
    assert (split.num_classes, split.scale) == (classes, 1 / 255)
    assert sizes(split).tolist() == [count] * 15
    for name, (x, y) in contents(split).items():
      for image, label in zip(x, y, strict=True):
        whose = held.pop(image.tobytes())
        assert (name, label) == (whose[0], whose[place])
  assert not held


def write_plays(folder, roles):
  folder.mkdir(parents=True)
  for part, split in enumerate(('train', 'test')):
    with h5py.File(folder / f'shakespeare_{split}.h5', 'w') as file:
      for name, said in roles.items():
        file[f'examples/{name}/snippets'] = [s.encode() for s in said[part]]


ROLES = {
  'PLAY_KING': (['So shaken\nas we are,', 'x' * 80], ['y' * 85]),
  'PLAY_QUEEN': (['w' * 90], ['z' * 82]),
  'PLAY_FOOL': (['w' * 90], ['Nay']),
}


def test_shakespeare_is_cut_from_snippets(tmp_path):
  write_plays(tmp_path / 'tff_shakespeare', ROLES)
  train, test = data.load('shakespeare', data_dir=tmp_path)
  assert train.info.names.tolist() == ['PLAY_KING', 'PLAY_QUEEN']  # One says little.
  text = 'So shaken as we are, ' + 'x' * 80
  assert sizes(train).tolist() == [len(text) - 80, 10]
  assert sizes(test).tolist() == [5, 2]
  first = ''.join(shakespeare.VOCABULARY[token] for token in train.x[0])
  assert first == text[:80]
  assert shakespeare.VOCABULARY[train.y[0]] == 'x'
  few, _ = data.load('shakespeare', data_dir=tmp_path, text_stride=10, source='tff')
  assert sizes(few).tolist() == [3, 1]
  tokens, _ = data.load('shakespeare', data_dir=tmp_path, task='sequence')
  assert tokens.y.shape == (31, 80)
