"""Each published format loads to the arrays that were written."""

import io
import json

import h5py
import numpy as np
import pytest
from PIL import Image

from fesem_jax.data import sources, text
from tests.support.sources import (
  FEMNIST,
  parts,
  write_cifar,
  write_idx,
  write_leaf,
  write_leaf_celeba,
  write_original,
  writers,
)


def by_part(clients):
  """(client, is test) -> x, y, of name -> (training, test)."""
  return {
    (name, bool(i)): pair
    for name, pair_of in clients.items()
    for i, pair in enumerate(pair_of)
  }


def assert_equal(pool, expected):
  result = parts(pool)
  assert result.keys() == expected.keys()
  for key, (x, y) in expected.items():
    np.testing.assert_array_equal(result[key][0], x)
    np.testing.assert_array_equal(result[key][1], y)


@pytest.mark.parametrize('form', FEMNIST)
def test_femnist(tmp_path, form):
  FEMNIST[form](tmp_path, writers())
  pool = sources.read('femnist', tmp_path)
  assert (pool.num_classes, pool.scale, pool.x.dtype) == (62, 1 / 255, np.uint8)
  assert pool.class_names[10] == 'A'
  assert_equal(pool, by_part(writers()))
  black = sources.read('femnist(background=black)', tmp_path)
  np.testing.assert_array_equal(black.x, 255 - pool.x)


def test_any_folder_of_leaf(tmp_path):
  write_leaf(tmp_path, writers())
  pool = sources.read(f'leaf({tmp_path})')
  x = {
    k: ((x / 255).reshape(len(x), -1), y) for k, (x, y) in by_part(writers()).items()
  }
  assert pool.x.dtype == np.float32
  assert_equal(pool, {k: (x.astype(np.float32), y) for k, (x, y) in x.items()})


def write_users(folder, users):
  """One file of LEAF, user -> y, with a feature each, and a user without any."""
  folder.mkdir(parents=True)
  blocks = {
    u: {'x': [[v / 8] for v in range(len(y))], 'y': y} for u, y in users.items()
  } | {'lonely': {'x': [], 'y': []}}
  (folder / 'a.json').write_text(json.dumps({'user_data': blocks}), 'utf-8-sig')


@pytest.mark.parametrize('folders', [('train', 'test'), ('all_data',)])
def test_users_of_leaf_without_a_split(tmp_path, folders):
  for folder, user in zip(folders, 'ba', strict=False):
    write_users(tmp_path / folder, {user: [0.5, 1.5, 2.5]})
  pool = sources.read(f'leaf({tmp_path})', task='regression')
  assert (pool.test, pool.task) == (None, 'regression')
  assert pool.names.tolist() == ['a', 'b'][-len(folders) :]
  assert pool.y[:3].tolist() == [[0.5], [1.5], [2.5]]


def write_splits(folder, prefixes, first=0, num_classes=10):
  """Two splits in idx files; returns what `parts` of them are."""
  rng, expected = np.random.default_rng(0), {}
  for i, (prefix, count) in enumerate(zip(prefixes, (12, 6), strict=True)):
    x = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    y = rng.integers(0, num_classes, count).astype(np.uint8)
    write_idx(folder / f'{prefix}-images-idx3-ubyte', x, zipped=i == 0)
    write_idx(folder / f'{prefix}-labels-idx1-ubyte', y + np.uint8(first))
    expected['', bool(i)] = x, y
  return expected


@pytest.mark.parametrize(('dataset', 'folder'), [
  ('mnist', 'mnist'), ('mnist', 'MNIST/raw'), ('fashion_mnist', 'fashion_mnist'),
  ('fashion_mnist', 'FashionMNIST/raw'),
])  # fmt: skip
def test_idx_files(tmp_path, dataset, folder):
  expected = write_splits(tmp_path / folder, ('train', 't10k'))
  pool = sources.read(dataset, tmp_path)
  assert (pool.num_classes, pool.scale) == (10, 1 / 255)
  assert_equal(pool, expected)


@pytest.mark.parametrize(('split', 'folder', 'first', 'classes'), [
  ('letters', 'EMNIST/raw', 1, 26), ('balanced', 'emnist', 0, 47),
])  # fmt: skip
def test_emnist_is_upright(tmp_path, split, folder, first, classes):
  prefixes = [f'emnist-{split}-{part}' for part in ('train', 'test')]
  expected = write_splits(tmp_path / folder, prefixes, first, classes)
  pool = sources.read(f'emnist(split={split})', tmp_path)
  assert pool.num_classes == classes
  assert_equal(pool, {k: (x.swapaxes(1, 2), y) for k, (x, y) in expected.items()})


def write_qmnist(folder, labels, rng):
  """Tables of QMNIST, with more test rows than MNIST has; returns theirs of MNIST."""
  tables = []
  for name, y in zip(('train', 'test'), labels, strict=True):
    table = rng.integers(0, 9, (len(y) + 5, 8)).astype('>i4')
    table[: len(y), 0] = y
    table[:, 2] = rng.integers(100, 103, len(table))
    table[:, 1] = 4 * (table[:, 2] == 101)
    write_idx(folder / f'qmnist-{name}-labels-idx2-int', table)
    tables.append(table[: len(y)])
  return np.concatenate(tables)


def test_mnist_by_writer(tmp_path):
  expected = write_splits(tmp_path / 'mnist', ('train', 't10k'))
  labels = [y for _, y in expected.values()]
  table = write_qmnist(tmp_path / 'qmnist', labels, np.random.default_rng(1))
  pool = sources.read('mnist_writers', tmp_path)
  assert pool.test is None
  np.testing.assert_array_equal(
    pool.x, np.concatenate([x for x, _ in expected.values()])
  )
  assert pool.names[pool.client].tolist() == [f'writer0{w}' for w in table[:, 2]]
  clusters = np.array(pool.cluster_names)[pool.cluster]
  assert clusters.tolist() == [f'HSF series {series}' for series in table[:, 1]]


@pytest.mark.parametrize('form', ['binary', 'python 2', 'python 5', 'bytes'])
@pytest.mark.parametrize(('dataset', 'column', 'classes'), [
  ('cifar10', 'labels', 10), ('cifar100', 'fine_labels', 100),
  ('cifar100(labels=coarse)', 'coarse_labels', 20),
])  # fmt: skip
def test_cifar(tmp_path, form, dataset, column, classes):
  expected = write_cifar(tmp_path, dataset[:8].rstrip('('), column, form)
  pool = sources.read(dataset, tmp_path)
  assert (pool.num_classes, pool.scale) == (classes, 1 / 255)
  assert_equal(pool, expected)


@pytest.mark.parametrize(('labels', 'classes'), [('fine', 100), ('coarse', 20)])
def test_cifar100_of_tff_has_training_and_test_clients(tmp_path, labels, classes):
  rng, expected = np.random.default_rng(0), {}
  (tmp_path / 'tff_cifar100').mkdir()
  for split, clients in (('train', 12), ('test', 3)):
    path = tmp_path / 'tff_cifar100' / f'fed_cifar100_{split}.h5'
    with h5py.File(path, 'w') as file:
      for client in range(clients):
        x = rng.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
        y = {'label': rng.integers(0, 100, 5), 'coarse_label': rng.integers(0, 20, 5)}
        for name, array in {'image': x, **y}.items():
          file[f'examples/{client}/{name}'] = array
        column = 'label' if labels == 'fine' else 'coarse_label'
        expected[f'{split}_{client:03d}', False] = x, y[column]
  pool = sources.read(f'cifar100(labels={labels})', tmp_path)
  assert pool.num_classes == classes
  assert_equal(pool, expected)


def resized(path):
  with Image.open(path) as image:
    return np.asarray(image.resize((84, 84), Image.Resampling.BICUBIC).convert('RGB'))


def celeba_as_of_a_mirror(folder):
  """Changes the publishers' lists to those of Kaggle, of which one is a text."""
  lists = folder / 'list_attr_celeba.txt'
  _, header, *rows = lists.read_text().splitlines()
  lines = ['image_id,' + ','.join(header.split()), *(','.join(r.split()) for r in rows)]
  lists.with_suffix('.csv').write_text('\n'.join(lines).replace('-1', '0'))
  lists.unlink()
  (folder / 'img_align_celeba').rename(folder / 'all')
  (folder / 'img_align_celeba').mkdir()
  (folder / 'all').rename(folder / 'img_align_celeba' / 'img_align_celeba')


@pytest.mark.parametrize('form', ['lists', 'mirror', 'leaf'])
def test_celeba(tmp_path, form):
  folder = tmp_path / ('leaf_celeba' if form == 'leaf' else 'celeba')
  names, smiles = (write_leaf_celeba if form == 'leaf' else write_original)(folder)
  if form == 'mirror':
    celeba_as_of_a_mirror(folder)
  (images,) = (p for p in folder.glob('**/img_align_celeba') if any(p.glob('*.jpg')))
  # LEAF's scripts split; the lists, written in reverse, have a celebrity of few images.
  if form == 'leaf':
    pairs = {
      person: (images_values[:4], images_values[4:])
      for person, images_values in names.items()
    }
  else:
    pairs = {
      person: (images_values[::-1],)
      for person, images_values in names.items()
      if len(images_values) > 4
    }
  expected = {
    part: (
      np.stack([resized(images / name) for name in images_values]),
      [smiles[n] for n in images_values],
    )
    for part, images_values in by_part(pairs).items()
    if images_values
  }
  pool = sources.read('celeba', tmp_path)
  assert pool.num_classes == 2
  assert_equal(pool, expected)
  assert sources.read('celeba', tmp_path, task='multilabel').y.shape == (len(pool.y), 1)


def characters(row):
  return ''.join(text.VOCABULARY[int(token)] for token in row)


def windows(string, stride=1):
  starts = range(0, len(string) - 80, stride)
  return [string[i : i + 80] for i in starts], [string[i + 80] for i in starts]


def assert_windows(pool, expected, stride=1):
  """Whether (client, is test) has the windows of a text."""
  result = parts(pool)
  assert result.keys() == expected.keys()
  assert (pool.num_classes, pool.scale, pool.x.dtype) == (80, 1.0, np.uint8)
  for key, (x, y) in result.items():
    texts, following = windows(expected[key], stride)
    assert [characters(row) for row in x] == texts
    assert characters(y) == ''.join(following)


def test_the_vocabulary_is_leafs():
  assert len(text.VOCABULARY) == len(set(text.VOCABULARY)) == 80
  assert text.tokens('\n aA0}').tolist() == [0, 1, 53, 25, 11, 79]
  # `'...'.find` gives -1 for others, the last place.
  assert text.tokens('$\t\u00e9\u2019\U0001f600').tolist() == [79] * 5


@pytest.mark.parametrize('stride', [1, 7])
def test_speakers_of_a_text(tmp_path, stride):
  rng = np.random.default_rng(0)

  def line():
    letters = list(text.VOCABULARY[1:5] + text.VOCABULARY[25:51])
    return ''.join(rng.choice(letters, 50)).strip()

  speeches = [(name, [line(), line()]) for name in ('First Citizen', 'ROMEO') * 6]
  blocks = [f'{name}:\n' + '\n'.join(lines) for name, lines in speeches]
  path = tmp_path / 'play.txt'
  path.write_text('\n\n'.join([*blocks, 'Nobody:\nHm.']), 'utf-8-sig')
  expected = {}
  for name in ('First Citizen', 'ROMEO'):
    whole = ' '.join(' '.join(lines) for who, lines in speeches if who == name)
    while '  ' in whole:
      whole = whole.replace('  ', ' ')
    cut = round(0.8 * len(whole))
    expected |= {(name, False): whole[:cut], (name, True): whole[cut:]}
  assert_windows(sources.read(f'text({path}, stride={stride})'), expected, stride)
  sequence = sources.read(f'text({path})', task='sequence')
  last = sources.read(f'text({path})').y
  np.testing.assert_array_equal(sequence.y, np.c_[sequence.x[:, 1:], last])


def test_shakespeare_of_tff(tmp_path):
  roles = {
    'PLAY_KING': (['So shaken\nas we are,', 'x' * 80], ['y' * 85]),
    'PLAY_QUEEN': (['w' * 90], ['z' * 82]),
    'PLAY_FOOL': (['w' * 90], ['Nay']),
  }
  (tmp_path / 'tff_shakespeare').mkdir()
  for i, split in enumerate(('train', 'test')):
    path = tmp_path / 'tff_shakespeare' / f'shakespeare_{split}.h5'
    with h5py.File(path, 'w') as file:
      for name, snippets in roles.items():
        file[f'examples/{name}/snippets'] = [s.encode() for s in snippets[i]]
  expected = {
    ('PLAY_KING', False): 'So shaken as we are, ' + 'x' * 80,
    ('PLAY_KING', True): 'y' * 85,
    ('PLAY_QUEEN', False): 'w' * 90,
    ('PLAY_QUEEN', True): 'z' * 82,
  }
  assert_windows(sources.read('shakespeare', tmp_path), expected)


def test_shakespeare_of_leaf(tmp_path):
  plays = {
    'HAMLET_HAM': 'To be or not to be, ' * 5,
    'HAMLET_OPHELIA': 'Good my lord ' * 7,
  }
  for split in ('train', 'test'):
    folder = tmp_path / 'leaf_shakespeare' / split
    folder.mkdir(parents=True)
    blocks = {
      n: dict(zip('xy', windows(lines), strict=True)) for n, lines in plays.items()
    }
    (folder / 'all_data.json').write_text(json.dumps({'user_data': blocks}))
  expected = {(n, test): lines for n, lines in plays.items() for test in (False, True)}
  assert_windows(sources.read('shakespeare', tmp_path), expected)


USERS = {
  '00000001': (['how do i sort a list', 'sort it'], ['how to sort']),
  '00000002': (['a list of words'] * 3, ['a list', 'i sort it now']),
  '00000003': (['only here'], []),
  '00000004': ([' '.join(f'w{i}' for i in range(30))], ['sort']),
}


@pytest.fixture
def stackoverflow(tmp_path):
  """The data folder of a small Stack Overflow."""
  (tmp_path / 'tff_stackoverflow').mkdir()
  for i, split in enumerate(('train', 'test')):
    path = tmp_path / 'tff_stackoverflow' / f'stackoverflow_{split}.h5'
    with h5py.File(path, 'w') as file:
      for name, sentences in USERS.items():
        if sentences[i]:
          file[f'examples/{name}/tokens'] = [s.encode() for s in sentences[i]]
  return tmp_path


def test_sentences_of_stack_overflow(stackoverflow):
  pool = sources.read('stackoverflow', stackoverflow)
  assert (pool.task, pool.num_classes) == ('sequence', 43)
  assert pool.x.shape[1:] == pool.y.shape[1:] == (20,)

  def words(tokens):
    return [pool.class_names[int(token)] for token in tokens if token > 0]

  result = parts(pool)
  assert {name for name, _ in result} == USERS.keys() - {'00000003'}
  (x, *_), (y, *_) = result['00000001', False]
  sentence = ['how', 'do', 'i', 'sort', 'a', 'list']
  assert (words(x), words(y)) == (['begin', *sentence, 'end'], [*sentence, 'end'])
  assert (y[7:] == -1).all()
  (x,), (y,) = result['00000004', False]
  long = [f'w{i}' for i in range(20)]
  assert (words(x), words(y)) == (['begin', *long[:19]], long)
  _, (y,) = result['00000001', True]
  assert words(y) == ['how', 'unknown', 'sort', 'end']


def test_words_of_stack_overflow_by_their_counts(stackoverflow):
  counts = stackoverflow / 'tff_stackoverflow' / 'stackoverflow.word_count'
  counts.write_text('sort 9\nlist 12\nabsent 1\n')
  names = sources.read('stackoverflow', stackoverflow).class_names
  assert names == ('padding', 'list', 'sort', 'absent', 'unknown', 'begin', 'end')


def test_some_users_of_stack_overflow_are_drawn(stackoverflow):
  drawn = {
    tuple(sources.read('stackoverflow(users=2)', stackoverflow, seed=seed).names)
    for seed in (0, 0, 1, 2, 3)
  }
  assert {len(set(names)) for names in drawn} == {2}
  assert 1 < len(drawn) < 5


def prepare_tfds(folder, named, version, num_classes, splits, config=''):
  """Writes a set as TensorFlow Datasets prepares it, in array_record."""
  tfds = pytest.importorskip('tensorflow_datasets')
  image, _ = splits['train'][0]
  features = tfds.features.FeaturesDict({
    'image': tfds.features.Image(shape=(*image.shape, 1)[:3]),
    'label': tfds.features.ClassLabel(num_classes=num_classes),
    'coarse_label': tfds.features.ClassLabel(num_classes=20),
  })  # fmt: skip

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
        yield (
          i,
          {'image': png.getvalue(), 'label': label, 'coarse_label': 19 - label % 20},
        )

  Builder(data_dir=folder, file_format='array_record').download_and_prepare()


@pytest.mark.parametrize(('dataset', 'prepared', 'classes'), [
  ('tfds(fashion_mnist)', ('fashion_mnist', '3.0.1', 10), 10),
  ('tfds(cifar100, label=coarse_label)', ('cifar100', '3.0.2', 100), 20),
  ('tfds(EMNIST/letters:3.1.0)', ('emnist', '3.1.0', 37), 26),
])  # fmt: skip
def test_tfds_is_read_offline_without_tensorflow(tmp_path, dataset, prepared, classes):
  rng, letters = np.random.default_rng(0), 'letters' in dataset
  shape = (32, 32, 3) if 'cifar' in dataset else (28, 28)
  splits = {
    split: [
      (rng.integers(0, 256, shape).astype(np.uint8), i % 10 + letters)
      for i in range(count)
    ]
    for split, count in (('train', 12), ('test', 6), ('extra', 3))
  }
  prepare_tfds(tmp_path / 'tfds', *prepared, splits, 'letters' * letters)
  pool = sources.read(dataset, tmp_path)
  assert pool.num_classes == classes
  label_of = {
    (x.T if letters else x).tobytes(): 19 - y if 'coarse' in dataset else y - letters
    for split in ('train', 'test')
    for x, y in splits[split]
  }
  assert len(label_of) == len(pool.y)  # They are in another order.
  assert [label_of[x.tobytes()] for x in pool.x] == pool.y.tolist()
  assert pool.test.sum() == 6


def write_parquet(folder, name, columns, **features):
  datasets = pytest.importorskip('datasets')
  folder.mkdir(parents=True, exist_ok=True)
  kinds = datasets.Features(image=datasets.Image(), **features) if features else None
  rows = datasets.Dataset.from_dict(columns, features=kinds)
  rows.to_parquet(folder / f'{name}-00000-of-00001.parquet')


def picture(value, *shape):
  return Image.fromarray(np.full(shape, value, np.uint8))


def test_the_hub_by_its_columns(tmp_path):
  datasets = pytest.importorskip('datasets')
  kinds = {'kind': datasets.ClassLabel(names=['ant', 'bee', 'cat'])}
  kinds['who'] = datasets.Value('string')
  folder = tmp_path / 'me' / 'mine' / 'large'
  for split, first, labels in (('train', 0, [0, 2, 1, 0]), ('test', 4, [1, 0])):
    images = [picture(first + i, 8, 8) for i in range(len(labels))]
    columns = {'image': images, 'kind': labels, 'who': list('abab')[: len(labels)]}
    write_parquet(folder, split, columns, **kinds)
  x = np.arange(6).repeat(64).reshape(6, 8, 8)
  expected = {('', False): (x[:4], [0, 2, 1, 0]), ('', True): (x[4:], [1, 0])}
  pool = sources.read('hub(me/mine, config=large)', tmp_path)
  assert (pool.num_classes, pool.scale) == (3, 1 / 255)
  assert pool.class_names == ('ant', 'bee', 'cat')
  assert_equal(pool, expected)
  pool = sources.read('hub(me/mine, client=who, config=large)', tmp_path)
  expected = {
    ('a', False): (x[[0, 2, 4]], [0, 1, 1]),
    ('b', False): (x[1::2], [2, 0, 0]),
  }
  assert_equal(pool, expected)


def test_images_of_several_sizes_and_modes_are_resized(tmp_path):
  images = [picture(9, 83, 90, 3), picture(9, 85, 90), picture(255, 8, 8).convert('1')]
  columns = {'image': images, 'label': [0, 1, 0]}
  write_parquet(tmp_path / 'me' / 'mine', 'train', columns)
  pool = sources.read('hub(me/mine, label=label, side=16)', tmp_path)
  assert pool.x.shape == (3, 16, 16, 3)
  assert set(pool.x.ravel()) == {9, 255}


PLACES = {
  'images({})': ('cat', 'dog', 'test_x'),
  'images({}, parents=client)': ('a/cat', 'a/dog', 'b/cat'),
  'images({}, parents=cluster)': ('art/cat', 'art/dog', 'photo/cat'),
  'images({}, parents=client, side=9)': (
    *('train/a/cat', 'train/a/dog', 'train/b/cat', 'test/a/cat', 'test/b/dog'),
  ),
  'images({},  parents=client)': (
    *('a/train/cat', 'a/train/dog', 'b/train/cat', 'a/test/cat', 'b/test/dog'),
  ),
}


@pytest.mark.parametrize('dataset', PLACES)
def test_folders_of_images(tmp_path, dataset):
  pytest.importorskip('datasets')
  places = {}
  for i, place in enumerate(PLACES[dataset]):
    (tmp_path / 'data' / place).mkdir(parents=True)
    for k in range(3):
      x = np.full((9, 9, 3), 10 * i + k, np.uint8)
      Image.fromarray(x).save(tmp_path / 'data' / place / f'{k}.png')
      places[10 * i + k] = place.split('/')
  (tmp_path / 'data' / '.hidden.png').touch()
  pool = sources.read(dataset.format(tmp_path / 'data'))
  assert len(pool.x) == len(places)
  for i, x in enumerate(pool.x):
    place = places[x[0, 0, 0]]
    assert pool.class_names[pool.y[i]] == place[-1]
    assert pool.test is None or pool.test[i] == ('test' in place)
    if 'client' in dataset:
      assert pool.names[pool.client[i]] == next(p for p in place if len(p) == 1)
    if 'cluster' in dataset:
      assert pool.cluster_names[pool.cluster[i]] == place[0]


@pytest.mark.parametrize(('dataset', 'clients', 'train', 'test'), [
  ('femnist', 5, 78, 89), ('mnist_writers', 836, 70_000, 0),
  ('mnist', 0, 60_000, 10_000),
  ('shakespeare(stride=80)', 193, 10_019, 2_437), ('digits', 0, 1797, 0),
  ('diabetes', 0, 442, 0),
])  # fmt: skip
def test_real_data(real_data, dataset, clients, train, test):
  pool = sources.read(dataset, real_data)
  tested = 0 if pool.test is None else pool.test.sum()
  assert (len(pool.y) - tested, tested) == (train, test)
  assert (0 if pool.names is None else len(pool.names)) == clients
