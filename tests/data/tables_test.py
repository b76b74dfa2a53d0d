"""CSV and Parquet files and data frames become clients, labels and features."""

import functools

import numpy as np
import optax
import pandas as pd
import pyarrow
import pytest
from sklearn import datasets

import fesem_jax as fj
from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.commands import call

COUNT = 120


def frame(**others):
  rng = np.random.default_rng(0)
  held = {
    'age': rng.normal(size=COUNT),
    'sex': np.array(['m', 'f'])[rng.integers(0, 2, COUNT)],
    'ward': pd.Categorical(np.array(['n', 's', 'w'])[rng.integers(0, 3, COUNT)]),
    'smokes': rng.random(COUNT) < 0.5,
    'hospital': np.array(['A', 'B', 'C', 'D'])[np.arange(COUNT) % 4],
    'dx': np.array(['flu', 'cold'])[rng.integers(0, 2, COUNT)],
  }
  return pd.DataFrame(held | others)


OPTIONS = {'label_column': 'dx', 'client_column': 'hospital'}
WANTED = np.stack(
  [frame().age, frame().sex == 'm', frame().ward == 'n', frame().ward == 's',
   frame().ward == 'w', frame().smokes],
  axis=1,
).astype(np.float32)  # fmt: skip


def check(train, test):
  assert train.info.names.tolist() == ['A', 'B', 'C', 'D']
  assert train.info.class_names == ('cold', 'flu')
  assert len(train.y) + len(test.y) == COUNT
  for part in (train, test):
    for i, name in enumerate('ABCD'):
      rows = np.flatnonzero(frame().hospital == name)
      known = {WANTED[r].tobytes(): frame().dx[r] for r in rows}
      x, y = part.client(i)
      labels = [known[row.tobytes()] for row in x]
      assert labels == [part.info.class_names[label] for label in y]


FILES = {
  'a.csv': lambda path: frame().to_csv(path, index=False),
  'index.csv': lambda path: frame().to_csv(path),
  'semicolons.csv': lambda path: frame().to_csv(path, sep=';', index=False),
  'tabs.tsv': lambda path: frame().to_csv(path, sep='\t', index=False),
  'zipped.csv.gz': lambda path: frame().to_csv(path, index=False),
  'excel.csv': lambda path: frame().to_csv(path, index=False, encoding='utf-8-sig'),
  'wide.csv': lambda path: frame().to_csv(
    path, sep='\t', index=False, encoding='utf-16'
  ),
  'lines.jsonl': lambda path: frame().to_json(path, orient='records', lines=True),
  'a.feather': lambda path: frame().to_feather(path),
  'said.csv': lambda path: path.write_text(
    'sep=;\n' + frame().to_csv(sep=';', index=False)
  ),
  'a.parquet': lambda path: frame().to_parquet(path),
}


@pytest.mark.parametrize('name', FILES)
def test_files(tmp_path, name):
  FILES[name](tmp_path / name)
  check(*data.load(f'table:{tmp_path / name}', **OPTIONS))


class Polars:
  """What a data frame of polars can do."""

  def __init__(self, table):
    self._table = table

  def to_arrow(self):
    return self._table

  def __arrow_c_stream__(self, requested_schema=None):
    return self._table.__arrow_c_stream__(requested_schema)


def test_a_file_or_a_frame_for_each_client(tmp_path):
  whole = frame()
  parts = {name: whole[whole.hospital == name] for name in 'DBAC'}
  apart = {name: part.drop(columns='hospital') for name, part in parts.items()}
  for name, part in apart.items():
    if name == 'A':  # Whole numbers in one file alone.
      part = part.astype({'smokes': int})
    part.astype({'smokes': int}).to_csv(tmp_path / f'{name}.csv', index=False)
  (tmp_path / 'readme.md').touch()
  check(*data.load(f'table:{tmp_path}', label_column='dx'))
  check(*data.load('mine', arrays=apart, label_column='dx'))
  check(*data.load('mine', arrays=parts, **OPTIONS))
  both = {'train': whole, 'test': whole[:40]}
  train, test = data.load('mine', arrays=both, **OPTIONS)
  assert (len(train.y), len(test.y)) == (120, 40)


def test_blanks_and_ends_of_lines_mean_nothing(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text(' a, b , y,\n1, x, u,\n2, z , v ,\n3,x,u,\n4,z,v,\n')
  train, test = data.load(f'table:{path}', num_clients=1)
  assert train.info.class_names == ('u', 'v')
  rows = np.concatenate([train.x, test.x])
  assert sorted(map(tuple, rows.tolist())) == [(1, 0), (2, 1), (3, 0), (4, 1)]


def test_several_targets_of_a_regression():
  targets = np.arange(8.0).reshape(4, 2)
  table = pyarrow.table({'x': [1.0, 2.0, 3.0, 4.0], 'y': targets.tolist()})
  train, test = data.load('mine', arrays=table, task='regression', num_clients=1)
  both = np.concatenate([train.y, test.y])
  np.testing.assert_array_equal(np.sort(both, axis=0), targets)


@pytest.mark.parametrize('kind', ['pandas', 'arrow', 'polars'])
def test_data_frames(kind):
  held = frame()
  if kind != 'pandas':
    held = pyarrow.Table.from_pandas(held, preserve_index=False)
  if kind == 'polars':
    held = Polars(held)
  check(*data.load('mine', arrays=held, **OPTIONS))


def test_columns_of_a_table_may_have_the_names_of_arrays():
  held = frame().rename(columns={'dx': 'y', 'hospital': 'client', 'ward': 'cluster'})
  held['cluster'] = held.client.isin(['A', 'B'])
  held['split'] = np.array(['train', 'Train', 'test'])[np.arange(COUNT) // 4 % 3]
  train, test = data.load('mine', arrays=held)
  assert train.x.shape == (80, 3)
  assert test.x.shape == (40, 3)
  assert train.info.clusters.tolist() == [1, 1, 0, 0]


def test_known_clusters_and_regression():
  train, _ = data.load(
    'mine', arrays=frame(), label_column='age', cluster_column='hospital',
    task='regression', partition='cluster', num_clients=8,
  )  # fmt: skip
  assert train.info.clusters.tolist() == ['A', 'B', 'C', 'D'] * 2
  assert train.task == 'regression'
  assert train.x.shape[1] == 6


def test_lists_of_numbers_are_features(tmp_path):
  vectors = np.arange(8.0).reshape(4, 2)
  table = pyarrow.table({'v': vectors.tolist(), 'y': [0, 1, 0, 1]})
  train, test = data.load('mine', arrays=table, num_clients=1)
  both = np.concatenate([train.x, test.x])
  np.testing.assert_array_equal(np.sort(both, axis=0), vectors)


def changed(column, row, value):
  held = frame().astype({'smokes': object, 'ward': object})
  held.loc[row, column] = value
  return held


BAD = {
  'no age': (changed('age', 3, np.nan), OPTIONS, 'age'),
  'no ward': (changed('ward', 3, None), OPTIONS, 'ward'),
  'no client': (changed('hospital', 7, None), OPTIONS, 'hospital'),
  'no label': (changed('dx', 0, None), OPTIONS, 'dx'),
  'notes': (frame(note=[f'n{i}' for i in range(COUNT)]), OPTIONS, 'note'),
  'percents': (frame(a=['1.5%', '2%', '3 %'] * 40), OPTIONS, 'column a'),
  'dates': (frame(day=pd.Timestamp('2020-01-01')), OPTIONS, 'day'),
  'numbers': (frame(a=['1', '2', '3', 'unknown'] * 30), OPTIONS, 'column a'),
  'valid': (frame(split=['train', 'test', 'valid'] * 40), OPTIONS, 'split'),
  'no such label': (frame(), {'label_column': 'z'}, '`label_column=z`'),
  'no y': (frame(), {}, 'no column y'),
  'nothing to drop': (frame(), OPTIONS | {'drop_columns': ['z']}, '`drop_columns=z`'),
}


@pytest.mark.parametrize('case', BAD)
def test_bad_tables_are_named(case):
  held, options, message = BAD[case]
  with pytest.raises(UserError, match=message):
    data.load('mine', arrays=held, **options)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'1;2;3\n4;5;6\n', 'begins with numbers'),
    (b'a y\n1 2\n', 'no column y'),
    (b'a,b,y\n1,?,0\n2,3,1\n', 'column b'),
    (b'a,b,y\n1,inf,0\n2,3,1\n', 'row 0 of x'),
  ],
)
def test_bad_files_are_named(tmp_path, content, message):
  path = tmp_path / 'bad.csv'
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    data.load(f'table:{path}')


def test_columns_of_numbers_are_standardized():
  held = frame(income=np.linspace(2e4, 9e4, COUNT), constant=7.0)
  train, test = data.load('mine', arrays=held, standardize=True, **OPTIONS)
  kept, kept_test = data.load('mine', arrays=held, **OPTIONS)
  raw = kept.x.astype(np.float64)
  numbers = [0, 6]  # Age and income; the others are 0 and 1, or constant.
  mean, deviation = raw[:, numbers].mean(axis=0), raw[:, numbers].std(axis=0)
  for got, want in ((train, kept), (test, kept_test)):
    np.testing.assert_allclose(
      got.x[:, numbers], (want.x[:, numbers] - mean) / deviation, rtol=2e-5, atol=2e-6
    )
    others = [1, 2, 3, 4, 5, 7]
    np.testing.assert_array_equal(got.x[:, others], want.x[:, others])
  with pytest.raises(UserError, match='`standardize` is for columns of numbers'):
    data.load('digits', standardize=True)


@functools.cache
def fed_avg(shape, classes):
  model = fj.models.build('logistic', shape, classes)
  return fj.algorithms.build('fed_avg', fj.local_training(model, optax.sgd(0.1)))


@pytest.mark.parametrize('standardize', [True, False])
def test_a_saved_run_predicts_of_standardized_columns_with_a_word(
  tmp_path, caplog, standardize
):
  train, test = data.load('m', arrays=frame(), standardize=standardize, **OPTIONS)
  algorithm = fed_avg(train.example_shape, train.num_classes)
  model = algorithm.local.model
  fj.simulate(algorithm, train, test, rounds=1, workdir=tmp_path / 'w')
  run = fj.load_run(tmp_path / 'w', model=model)
  caplog.clear()
  run.predict(test.x[:3])
  said = [x for x in caplog.messages if 'standardized features (`standardize`)' in x]
  assert len(said) == standardize


def test_the_command_line_reads_files_and_functions(tmp_path):
  wine = datasets.load_wine(as_frame=True).frame
  wine['farm'] = np.arange(len(wine)) % 6
  wine.to_csv(tmp_path / 'wine.csv', index=False)
  (tmp_path / 'own_wine.py').write_text(
    'import pandas\ndef frame(*, path="wine.csv"):\n  return pandas.read_csv(path)\n'
  )
  shared = ('--label_column=target', '--client_column=farm', '--standardize')
  told = [
    call('data', f'--dataset={name}', *shared, cwd=tmp_path)
    for name in ('table:wine.csv', 'own_wine:frame')
  ]
  assert [done.returncode for done in told] == [0, 0], told[0].stderr + told[1].stderr
  assert told[0].stdout == told[1].stdout
  run = call(
    'run', '--dataset=own_wine:frame', *shared, '--algorithm=fed_avg', '--rounds=1',
    '--model=logistic', '--workdir=w', '--report_html=false', cwd=tmp_path,
  )  # fmt: skip
  assert run.returncode == 0, run.stderr


def table_of(folder, name, text):
  path = folder / name
  path.write_text(text)
  return path


def test_names_of_clients_are_those_that_are_written(tmp_path):
  rows = '\n'.join(f'{i / 7:.3f},{i % 2},{c}' for c in ('007', '7') for i in range(6))
  path = table_of(tmp_path, 'a.csv', f'x,y,client\n{rows}\n')
  train, _ = data.load(f'table:{path}')
  assert train.info.names.tolist() == ['007', '7']
  path = table_of(tmp_path, 'blanks.csv', path.read_text().replace(',', ', '))
  train, _ = data.load(f'table:{path}')
  assert train.info.names.tolist() == ['007', '7']
  rows = '\n'.join(f'{i / 7:.3f},{i % 2},{c}' for c in (10, 2) for i in range(6))
  path = table_of(tmp_path, 'b.csv', f'x,y,client\n{rows}\n')
  train, _ = data.load(f'table:{path}')
  assert train.info.names.tolist() == ['2', '10']


def write_parts(folder, places):
  """A table of three rows at each place, of numbers of its own."""
  for number, place in enumerate(places):
    (folder / place).parent.mkdir(exist_ok=True)
    rows = '\n'.join(f'{number + i / 10:.1f},{i % 2}' for i in range(3))
    table_of(folder, place, f'x,y\n{rows}\n')
  (folder / '.hidden.csv').write_text('')
  (folder / '.checkpoints').mkdir()
  (folder / '.checkpoints' / 'a.csv').write_text('')


@pytest.mark.parametrize(
  'places',
  [
    ('a.b/train.csv', 'a.b/test.tsv', 'c/train.csv', 'c/test.csv'),
    ('Training/a.b.csv', 'test/a.b.csv', 'Training/c.csv', 'test/c.csv'),
  ],
)
def test_folders_of_clients_and_splits(tmp_path, places):
  write_parts(tmp_path, places)
  train, test = data.load(f'table:{tmp_path}')
  for split, numbers in ((train, (0, 2)), (test, (1, 3))):
    assert split.info.names.tolist() == ['a.b', 'c']
    for i, number in enumerate(numbers):
      x, y = split.client(i)
      np.testing.assert_allclose(x[:, 0], number + np.arange(3) / 10, rtol=1e-6)
      assert y.tolist() == [0, 1, 0]


def test_a_table_of_each_split_is_dealt(tmp_path):
  write_parts(tmp_path, ('train.csv', 'test.csv'))
  train, test = data.load(f'table:{tmp_path}', num_clients=2)
  assert (train.x.max() < 1, test.x.min() >= 1) == (True, True)
  assert (len(train.y), len(test.y)) == (3, 3)


@pytest.mark.parametrize(
  ('places', 'message'),
  [
    (('train.csv', 'a.csv'), 'tables of clients'),
    (('a/train.csv', 'b/train.csv'), 'train alone'),
    (('a.csv', 'a.tsv'), 'two files'),
  ],
)
def test_folders_that_say_no_clients_are_named(tmp_path, places, message):
  write_parts(tmp_path, places)
  with pytest.raises(UserError, match=message):
    data.load(f'table:{tmp_path}')


def test_an_index_with_a_name_is_a_column():
  check(*data.load('mine', arrays=frame().set_index('hospital'), **OPTIONS))
  both = frame().set_index(['hospital', np.arange(COUNT)])
  check(*data.load('mine', arrays=both, **OPTIONS))


def test_row_numbers_of_each_file_are_no_feature(tmp_path):
  whole = frame()
  for name in 'ABCD':
    whole[whole.hospital == name].drop(columns='hospital').to_csv(
      tmp_path / f'{name}.csv'
    )
  check(*data.load(f'table:{tmp_path}', label_column='dx'))


def test_datasets_of_the_hub_are_tables_with_the_names_of_classes():
  hub = pytest.importorskip('datasets')
  kind = hub.ClassLabel(names=['new', 'old', 'odd'])
  held = hub.Dataset.from_dict(
    {'x': np.arange(12.0) / 10, 'label': [0, 1, 2] * 4, 'who': ['a', 'b'] * 6}
  ).cast_column('label', kind)
  options = {'label_column': 'label', 'client_column': 'who'}
  train, test = data.load('mine', arrays=held.select(range(10)), **options)
  assert train.info.names.tolist() == ['a', 'b']
  assert train.info.class_names == ('new', 'odd', 'old')
  assert len(train.y) + len(test.y) == 10
  names = dict(
    zip((np.arange(12.0) / 10).round(1), ['new', 'old', 'odd'] * 4, strict=True)
  )
  for x, y in zip(train.x[:, 0].tolist(), train.y.tolist(), strict=True):
    assert train.info.class_names[y] == names[round(x, 1)]
  parts = hub.DatasetDict(
    {'train': held.select(range(8)), 'test': held.select(range(8, 12))}
  )
  train, test = data.load('mine', arrays=parts, **options)
  assert (len(train.y), len(test.y)) == (8, 4)
  unknown = held.map(
    lambda row, i: row | {'label': -1 if i == 3 else 0}, with_indices=True
  )
  with pytest.raises(UserError, match='label'):
    data.load('mine', arrays=unknown, **options)
  images = pyarrow.table({'y': [0, 1], 'x': [{'bytes': b'', 'path': ''}] * 2})
  with pytest.raises(UserError, match='hub'):
    data.load('mine', arrays=images)


def test_formats_of_datasets_of_the_hub_are_not_ignored():
  hub = pytest.importorskip('datasets')
  held = hub.Dataset.from_dict(
    {'a': [0.5, 1.5] * 6, 'b': [0.0, 1.0] * 6, 'y': [0, 1] * 6}
  )
  twice = held.with_transform(lambda rows: rows | {'a': [2 * a for a in rows['a']]})
  with pytest.raises(UserError, match='has a transform'):
    data.load('mine', arrays=twice, num_clients=2)
  shown = held.with_format('numpy', columns=['y', 'a'])
  train, _ = data.load('mine', arrays=shown, num_clients=2)
  assert train.example_shape == (1,)
  np.testing.assert_array_equal(train.x[:, 0], train.y + 0.5)
