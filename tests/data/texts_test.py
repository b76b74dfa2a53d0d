"""Texts of any script, by speaker or by file."""

import unicodedata

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.commands import call

RUSSIAN = 'в лесу родилась ёлочка, в лесу она росла. '


def drawn(alphabet, count, seed=0):
  return ''.join(np.random.default_rng(seed).choice(list(alphabet), count))


def check(split, texts, part):
  """Windows of a split are those of the texts, by names of characters."""
  names = {'space': ' '}
  for i, client in enumerate(split.info.names):
    whole = unicodedata.normalize('NFC', texts[client])
    cut = round(0.8 * len(whole))
    wanted = whole[:cut] if part == 'train' else whole[cut:]
    x, y = split.client(i)
    assert len(y) == len(wanted) - 80
    for start in (0, len(y) - 1):
      tokens = [*x[start].astype(int), y[start]]
      read = [split.info.class_names[token] for token in tokens]
      read = ''.join(names.get(c, c) for c in read)
      assert read == wanted[start : start + 81]


def test_the_characters_of_the_data_are_the_vocabulary(tmp_path):
  texts = {'Иван': (RUSSIAN * 30).strip(), 'Мария': (RUSSIAN * 20).strip()}
  path = tmp_path / 'play.txt'
  path.write_text('\n\n'.join(f'{n}:\n{t}' for n, t in texts.items()), 'utf-8')
  train, test = data.load(f'text:{path}')
  assert train.info.names.tolist() == ['Иван', 'Мария']
  count = len(set(RUSSIAN))
  assert train.num_classes == count + 1
  assert train.info.class_names[-1] == 'unknown'
  assert train.x.dtype == np.uint8
  check(train, texts, 'train')
  check(test, texts, 'test')
  both, _ = data.load(f'text:{path}', task='sequence')
  np.testing.assert_array_equal(both.y[:, -1], train.y)
  np.testing.assert_array_equal(both.y[:, :-1], np.asarray(both.x)[:, 1:])


def test_many_characters_are_no_bytes(tmp_path):
  alphabet = [chr(0x4E00 + i) for i in range(400)]
  texts = {'甲': drawn(alphabet, 9000), '乙': drawn(alphabet, 5000, 1)}
  folder = tmp_path / 'authors'
  folder.mkdir()
  for name, text in texts.items():
    (folder / f'{name}.txt').write_text(text, 'utf-8')
  train, test = data.load(f'text:{folder}')
  assert train.num_classes == 401
  assert train.x.dtype == np.float32
  check(train, texts, 'train')
  check(test, texts, 'test')


def test_characters_of_the_test_text_alone_are_one_class(tmp_path):
  folder = tmp_path / 'authors'
  folder.mkdir()
  (folder / 'a.txt').write_text('ab' * 400 + 'acxb' * 50, 'utf-8')
  (folder / 'b.txt').write_text(unicodedata.normalize('NFD', 'éa' * 500), 'utf-8')
  train, test = data.load(f'text:{folder}')
  assert train.info.class_names == ('a', 'b', 'é', 'unknown')
  share = np.mean(np.concatenate([test.client(i)[1] for i in range(2)]) == 3)
  assert share > 0.1


def test_wide_colons_end_names(tmp_path):
  path = tmp_path / 'play.txt'
  path.write_text(
    '\n\n'.join(f'甲\uff1a\n{drawn("天地玄黃", 90)}' for _ in range(9)), 'utf-8'
  )
  train, _ = data.load(f'text:{path}')
  assert train.info.names.tolist() == ['甲']


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('text:short.txt', {}, 'no speaker'),
    ('text:bare.txt', {}, 'NAME'),
    ('text:short.txt', {'vocabulary': 'own'}, '^vocabulary: '),
  ],
)
def test_texts_that_cannot_be_read_are_named(
  tmp_path, monkeypatch, name, options, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'short.txt').write_text('A:\nHm.')
  (tmp_path / 'bare.txt').write_text('Who')
  with pytest.raises(UserError, match=message):
    data.load(name, **options)


def test_the_command_line_trains_on_any_script(tmp_path):
  (tmp_path / 'authors').mkdir()
  for name in ('a', 'b'):
    (tmp_path / 'authors' / f'{name}.txt').write_text(RUSSIAN * 12, 'utf-8')
  run = call(
    'run', '--dataset=text:authors', '--text_stride=40', '--model=logistic',
    '--algorithm=fed_avg', '--rounds=1', '--workdir=w', '--report_html=false',
    cwd=tmp_path,
  )  # fmt: skip
  assert run.returncode == 0, run.stderr


def test_texts_of_splits_are_no_clients(tmp_path):
  for name in ('train', 'test'):
    (tmp_path / f'{name}.txt').write_text(drawn('abc', 300))
  with pytest.raises(UserError, match='a text train'):
    data.load(f'text:{tmp_path}')
