"""Hostile JSON is refused before it is parsed."""

import json

import pytest

from fesem_jax import data
from fesem_jax.data import json_reader
from fesem_jax.data.json_reader import JsonReader
from fesem_jax.utils.errors import UserError


def one_user(users='["a"]', num_samples='[1]', x='[[1]]', y='[1]', more=''):
  return (
    f'{{"users": {users}, "num_samples": {num_samples}, {more}'
    f'"user_data": {{"a": {{"x": {x}, "y": {y}}}}}}}'
  )


LONG = 'holds a number or string of more than 2,000 characters'


DEEP = 'holds brackets nested more than 32 deep'


BRACKETS = '[' * 50_000 + ']' * 50_000


BRACES = '{"a":' * 50_000 + '1' + '}' * 50_000


NO_FEATURES = 'which holds no features'


TWICE = json.dumps([*map(str, range(50_000)), '49999'])


HOSTILE = {
  'digits in users': (one_user(users=f'[{"1" * 5000}]'), LONG),
  'digits in num_samples': (one_user(num_samples=f'[{"1" * 5000}]'), LONG),
  'digits in x': (one_user(x=f'[[{"1" * 5000}]]'), LONG),
  'digits in y': (one_user(y=f'[0.{"1" * 5000}]'), LONG),
  'a string of 10 MB': (one_user(users=f'["{"a" * 10**7}"]'), LONG),
  'a string of commas': (one_user(x=f'[["{"a, " * 10**6}"]]'), LONG),
  'brackets in x': (one_user(x=BRACKETS), DEEP),
  'brackets in users': (one_user(users=BRACKETS), DEEP),
  'braces': (one_user(more=f'"z": {BRACES},'), DEEP),
  'a stray byte': (one_user(users='["\udc80"]'), r'not complete JSON \(lexical error'),
  'a surrogate': (one_user(users='["\udced\udca0\udc80"]'), 'a.json is damaged or not'),
  'x without features': (one_user(x='[1]'), NO_FEATURES),
  'empty x': (one_user(x='[[]]'), NO_FEATURES),
  'a user twice': (one_user(TWICE, str([1] * 50_001)), 'user 49999: listed twice'),
}  # fmt: skip


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_json_is_refused(tmp_path, name):
  text, message = HOSTILE[name]
  for split in ('train', 'test'):
    (tmp_path / split).mkdir()
    path = tmp_path / split / 'a.json'
    path.write_bytes(text.encode('utf-8', 'surrogateescape'))
  with pytest.raises(UserError, match=message) as caught:
    data.load(f'leaf:{tmp_path}')
  assert len(str(caught.value)) < 1000


@pytest.mark.parametrize('size', [1, 2, 3, 7, 64, 2**20])
def test_bounds_on_json_do_not_depend_on_how_it_is_read(tmp_path, size):
  """Strings, escapes and brackets may be cut anywhere."""
  path = tmp_path / 'a.json'

  def read(content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with JsonReader(path) as f:
      return b''.join(iter(lambda: f.read(size), b''))

  names = ['[[[[' * 20, 'a"[' * 20, '\\', '\\\\"', '{' * 40, '\\"' * 9, ', ]', 'é[']
  everything = {name: [name, [1.5, -2e-7], {name: names}] for name in names}
  assert json.loads(read([everything] * 3)) == [everything] * 3
  spaced = '[1,' + ' ' * 10_000 + '2]'
  assert read(spaced).decode() == spaced

  def deep(n):
    return '[' * n + '"]"' + ']' * n

  assert read(deep(json_reader.MAX_DEPTH)).decode() == deep(json_reader.MAX_DEPTH)
  with pytest.raises(UserError, match=DEEP):
    read(deep(json_reader.MAX_DEPTH + 1))
  most = json_reader.MAX_TOKEN
  if size > most:
    assert read(['a' * most, int('1' * most)])
    for token in ('1' * (most + 1), f'"{"a" * (most + 1)}"'):
      for text in (f'[1, {token}, 2]', f'[{token}', token):
        with pytest.raises(UserError, match=LONG):
          read(text)
