"""Shakespeare by speaker, from LEAF's JSON and from plain text."""

import json

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import shakespeare
from fesem_jax.data.shakespeare import VOCABULARY
from fesem_jax.utils.errors import UserError
from tests.support.sources import sizes

_WORDS = 'To be, or not to be; that is the question: whether tis nobler in the mind. '


def write_text(tmp_path, text):
  folder = tmp_path / 'tinyshakespeare'
  folder.mkdir()
  (folder / 'input.txt').write_text(text)


def speeches(seed=0):
  """Speaker -> what is said, in lines."""
  rng = np.random.default_rng(seed)

  def line():
    return ''.join(rng.choice(list(VOCABULARY[1:5] + VOCABULARY[25:51]), 50)).strip()

  return [(name, [line(), line()]) for name in ('First Citizen', 'ROMEO') * 6]


def as_text(said):
  return '\n\n'.join(f'{name}:\n' + '\n'.join(lines) for name, lines in said) + '\n'


def text_of(row):
  return ''.join(VOCABULARY[token] for token in row)


def test_the_vocabulary_is_leafs():
  assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
  assert shakespeare.tokens('\n aA0}').tolist() == [0, 1, 53, 25, 11, 79]
  # `'...'.find` gives -1 for others, the last place.
  others = '$\t\u00e9\u2019\U0001f600'
  assert [VOCABULARY.find(c) % 80 for c in others] == [79] * 5
  assert shakespeare.tokens(others).tolist() == [79] * 5


@pytest.mark.parametrize('stride', [1, 7])
def test_speakers_are_clients_and_splits_share_no_character(tmp_path, stride):
  said = speeches()
  write_text(tmp_path, as_text([*said, ('Nobody', ['Hm.'])]))
  train, test = data.load('shakespeare', data_dir=tmp_path, text_stride=stride)
  assert train.info.names.tolist() == ['First Citizen', 'ROMEO']
  assert (train.example_shape, train.x.dtype, train.scale) == ((80,), np.uint8, 1.0)
  assert (train.num_classes, test.num_classes) == (80, 80)
  for i, name in enumerate(train.info.names):
    whole = ' '.join(' '.join(lines) for who, lines in said if who == name)
    while '  ' in whole:
      whole = whole.replace('  ', ' ')
    cut = round(0.8 * len(whole))
    for split, part in ((train, whole[:cut]), (test, whole[cut:])):
      x, y = split.client(i)
      starts = range(0, len(part) - 80, stride)
      assert len(y) == len(starts)
      for row, label, start in zip(x, y, starts, strict=True):
        assert text_of(row) == part[start : start + 80]
        assert VOCABULARY[label] == part[start + 80]


def test_a_byte_order_mark_names_no_speaker(tmp_path):
  write_text(tmp_path, '\ufeff' + as_text(speeches()))
  train, _ = data.load('shakespeare', data_dir=tmp_path, text_stride=80)
  assert train.info.names.tolist() == ['First Citizen', 'ROMEO']


def leaf_file(folder, users, **extra):
  for split, share in (('train', slice(0, 4)), ('test', slice(4, None))):
    content = {
      'users': list(users),
      'num_samples': [len(x[share]) for x, _ in users.values()],
      'hierarchies': ['a play'] * len(users),
      'user_data': {
        name: {'x': x[share], 'y': y[share]} for name, (x, y) in users.items()
      },
    }
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / 'all_data.json').write_text(json.dumps(content))


def windows_of(text):
  starts = range(len(text) - 80)
  return [text[i : i + 80] for i in starts], [text[i + 80] for i in starts]


def test_leafs_json_is_read_with_its_own_split(tmp_path):
  users = {
    'HAMLET_HAM': windows_of((_WORDS * 3)[:90]),
    'HAMLET_OPHELIA': windows_of(('Good my lord$ "' * 9)[:86]),
  }
  leaf_file(tmp_path / 'leaf_shakespeare', users)
  train, test = data.load('shakespeare', data_dir=tmp_path, source='leaf')
  assert train.info.names.tolist() == sorted(users)
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([4, 4], [6, 2])
  x, y = users['HAMLET_OPHELIA']
  got_x, got_y = train.client(1)
  assert [text_of(row) for row in got_x] == [line.replace('$', '}') for line in x[:4]]
  assert [VOCABULARY[label] for label in got_y] == [c.replace('$', '}') for c in y[:4]]


@pytest.mark.parametrize(
  ('x', 'y', 'message'),
  [
    (['a' * 79] * 6, ['b'] * 6, 'x needs'),
    (['a' * 80] * 6, ['bc'] * 6, 'y needs'),
  ],
)
def test_other_json_is_refused(tmp_path, x, y, message):
  leaf_file(tmp_path / 'leaf_shakespeare', {'someone': (x, y)})
  with pytest.raises(UserError, match=f'user someone: {message}'):
    data.load('shakespeare', data_dir=tmp_path)


@pytest.mark.parametrize(
  ('text', 'options', 'message'),
  [
    ('just words\nwithout a name', {}, 'NAME'),
    ('ROMEO:\nO!', {}, 'no speaker'),
    ('ROMEO:\nO!', {'text_stride': 0}, '`text_stride=0`'),
  ],
)
def test_other_texts_are_refused(tmp_path, text, options, message):
  write_text(tmp_path, text)
  with pytest.raises(UserError, match=message):
    data.load('shakespeare', data_dir=tmp_path, **options)


def test_real_speakers(real_data):
  train, test = data.load('shakespeare', data_dir=real_data, text_stride=10)
  assert train.num_clients > 100
  assert 'ROMEO' in train.info.names
  assert len(train.y) > 50_000
  romeo = int(np.flatnonzero(train.info.names == 'ROMEO')[0])
  assert text_of(train.client(romeo)[0][0]).startswith('Is the day so young?')
  assert sizes(test).min() >= 1
