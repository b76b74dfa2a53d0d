"""Tables and texts of a user's own."""

import datetime
import json

import numpy as np

from fesem_jax import data
from tests.fuzz.forms import Format, bytes_of, lines_of, one_of, plausible

_OPTIONS = {'label_column': 'label', 'client_column': 'who'}


def _columns():
  rng = np.random.default_rng(0)
  return {
    'a': np.round(rng.normal(size=24), 3).tolist(),
    'kind': ['u', 'v', 'w'] * 8,
    'who': ['Ann', 'Bob'] * 12,
    'label': [0, 1, 2] * 8,
  }


def _write_csv(folder):
  folder.mkdir(parents=True, exist_ok=True)
  held = _columns()
  rows = [list(held), *zip(*held.values(), strict=True)]
  text = '\n'.join(','.join(map(str, row)) for row in rows) + '\n'
  (folder / 'own.csv').write_text(text)


def _write_parquet(folder):
  import pyarrow
  from pyarrow import parquet

  folder.mkdir(parents=True, exist_ok=True)
  parquet.write_table(pyarrow.table(_columns()), folder / 'own.parquet')


def _write_lines(folder):
  folder.mkdir(parents=True, exist_ok=True)
  held = _columns()
  rows = [dict(zip(held, row, strict=True)) for row in zip(*held.values(), strict=True)]
  (folder / 'own.jsonl').write_text('\n'.join(map(json.dumps, rows)))


def _write_feather(folder):
  import pyarrow
  from pyarrow import feather

  folder.mkdir(parents=True, exist_ok=True)
  feather.write_feather(pyarrow.table(_columns()), str(folder / 'own.feather'))


def _change_parquet(rng, folder):
  import pyarrow
  from pyarrow import parquet

  held = _columns()
  name = list(held)[rng.integers(4)]
  others = (
    [None] * 24, [[1.0]] * 24, [[1.0], [1.0, 2.0]] * 12, [b'\xff'] * 24, [np.nan] * 24,
    [{'a': 1}] * 24, [2**62] * 24, [True, False] * 12, ['a\0b'] * 24, [0.5] * 24,
    [-1] * 24, [datetime.date(2020, 1, 1)] * 24,
  )  # fmt: skip
  match int(rng.integers(0, 4)):
    case 0 | 1:
      held[name] = others[rng.integers(len(others))]
    case 2:
      del held[name]
    case 3:
      held = {column: values[: rng.integers(3)] for column, values in held.items()}
      size = min(map(len, held.values()))
      held = {column: values[:size] for column, values in held.items()}
  parquet.write_table(pyarrow.table(held), folder / 'own.parquet')


def _write_texts(folder):
  (folder / 'texts').mkdir(parents=True, exist_ok=True)
  for name, word in (('a', 'to be or not '), ('b', 'в лесу ёлочка ')):
    (folder / 'texts' / f'{name}.txt').write_text(word * 60, 'utf-8')


def _table(name):
  return lambda folder: plausible(data.load(f'table:{folder / name}', **_OPTIONS))


FORMATS = {
  'CSV table': Format(
    _write_csv, one_of(lines_of('own.csv', ','), bytes_of('own.csv')), _table('own.csv')
  ),
  'Parquet table': Format(
    _write_parquet,
    one_of(_change_parquet, bytes_of('own.parquet')),
    _table('own.parquet'),
  ),
  'JSON lines': Format(_write_lines, bytes_of('own.jsonl'), _table('own.jsonl')),
  'Feather table': Format(
    _write_feather, bytes_of('own.feather'), _table('own.feather')
  ),
  'folder of texts': Format(
    _write_texts,
    bytes_of('*.txt'),
    lambda folder: plausible(data.load(f'text:{folder / "texts"}')),
  ),
}
