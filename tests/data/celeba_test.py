"""CelebA's images and lists load to what was written; bad ones are named."""

import numpy as np
import pytest
from PIL import Image

from fesem_jax import data
from fesem_jax.data import celeba
from fesem_jax.utils.errors import UserError
from tests.support.sources import write_leaf_celeba, write_original


def test_original_celeba(tmp_path):
  folder = tmp_path / 'celeba'
  names, smiles = write_original(folder)
  train, test = data.load('celeba', data_dir=tmp_path)
  assert train.info.names.tolist() == ['12', '7']  # 99 has four images only.
  assert train.x.shape[1:] == (84, 84, 3)
  assert train.num_classes == 2
  assert np.asarray(train.sizes()).tolist() == [4, 5]
  wanted = {}
  for name in names['12']:
    with Image.open(folder / 'img_align_celeba' / name) as image:
      wanted[celeba.resize(image).tobytes()] = smiles[name]
  for split in (train, test):
    for x, y in zip(*split.client(0), strict=True):
      assert wanted.pop(x.tobytes()) == y
  assert not wanted


def test_leaf_celeba(tmp_path):
  folder = tmp_path / 'leaf_celeba'
  names, smiles = write_leaf_celeba(folder)
  train, test = data.load('celeba', data_dir=tmp_path)
  assert np.asarray(train.sizes()).tolist() == [4, 4, 4]
  assert np.asarray(test.sizes()).tolist() == [1, 2, 0]
  np.testing.assert_array_equal(
    train.client(0)[1], [smiles[n] for n in names['12'][:4]]
  )
  path = folder / 'train' / 'all_data.json'
  text = path.read_text()
  path.write_text(text.replace(names['12'][0], '999999.jpg'))
  with pytest.raises(UserError, match='999999'):
    data.load('celeba', data_dir=tmp_path)


@pytest.mark.parametrize(
  ('break_it', 'message'),
  [
    (lambda f: (f / 'img_align_celeba' / '000003.jpg').unlink(), '000003.jpg'),
    (lambda f: (f / 'img_align_celeba' / '000003.jpg').write_bytes(b'x'), '000003.jpg'),
    (lambda f: (f / 'identity_CelebA.txt').unlink(), 'identity_CelebA'),
    (lambda f: (f / 'img_align_celeba').rename(f / 'other'), 'img_align_celeba'),
  ],
)  # fmt: skip
def test_bad_celeba_files_are_named(tmp_path, break_it, message):
  folder = tmp_path / 'celeba'
  write_original(folder)
  break_it(folder)
  with pytest.raises(UserError, match=message):
    data.load('celeba', data_dir=tmp_path)


@pytest.mark.parametrize('no', ['-1', '0'])
def test_celeba_of_a_mirror(tmp_path, no):
  folder = tmp_path / 'celeba'
  write_original(folder)
  wanted = data.load('celeba', data_dir=tmp_path)
  images, lists = folder / 'img_align_celeba', folder / 'list_attr_celeba.txt'
  _, header, *rows = lists.read_text().split('\n')
  lines = [f'image_id,{",".join(header.split())}']
  lines += [','.join(row.split()).replace('-1', no) for row in rows]
  (folder / 'list_attr_celeba.csv').write_text('\n'.join(lines))
  lists.unlink()
  images.rename(folder / 'all')
  images.mkdir()
  (folder / 'all').rename(images / 'img_align_celeba')
  identity = folder / 'identity_CelebA.txt'
  for each in ('txt', 'csv'):
    found = data.load('celeba', data_dir=tmp_path)
    for one, other in zip(wanted, found, strict=True):
      np.testing.assert_array_equal(one.x, other.x)
      np.testing.assert_array_equal(one.y, other.y)
    if each == 'txt':  # Then the second list as a table, too.
      text = 'image_id,identity\n' + identity.read_text().replace(' ', ',')
      (folder / 'identity_CelebA.csv').write_text(text)
      identity.unlink()
