"""Tables of fesem-data say what is in the data."""

import csv

import numpy as np

from tests.support.commands import call


def read(path):
  with path.open() as file:
    return list(csv.DictReader(file))


def test_tables_of_clients_classes_and_what_describe_returns(tmp_path):
  rng = np.random.default_rng(0)
  x = rng.random((40, 3)) * [1, 1, 4]
  x[27] = x[5]  # A test example of client b that client a trains on.
  client = np.repeat(['a', 'b', 'a', 'b'], 10)
  y = np.array(['cat', 'dog'])[rng.integers(0, 2, 40)]
  y[27] = y[5]
  client[20:] = np.repeat(['b', 'a'], 10)
  split = np.repeat([0, 1], 20)
  cluster = np.where(client == 'a', 'old', 'young')
  np.savez(
    tmp_path / 'mine.npz', x=x, y=y, client=client, split=split, cluster=cluster,
    scale=0.5,
  )  # fmt: skip
  done = call('data', '--dataset=npz:mine.npz', '--tables=out/t', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  folder = tmp_path / 'out' / 't'
  assert 'out/t/clients.csv' in done.stdout
  assert read(folder / 'clients.csv') == [
    {'client': name, 'cluster': of, 'training': '10', 'test': '10'}
    for name, of in (('a', 'old'), ('b', 'young'))
  ]
  for line in read(folder / 'classes.csv'):
    rows = (client == line['client']) & (split == (line['split'] == 'test'))
    assert {name: int(line[name]) for name in ('cat', 'dog')} == {
      name: (y[rows] == name).sum() for name in ('cat', 'dog')
    }
  rows = {line['']: line for line in read(folder / 'description.csv')}
  assert float(rows['in train']['test']) == 1 / 20


def test_a_regression_has_no_table_of_classes(tmp_path):
  done = call(
    'data', '--dataset=diabetes', '--num_clients=4', '--tables=t', cwd=tmp_path
  )
  assert done.returncode == 0, done.stderr
  names = sorted(path.name for path in (tmp_path / 't').iterdir())
  assert names == ['clients.csv', 'description.csv']


def test_pictures_are_drawn_of_images_alone(tmp_path):
  rng = np.random.default_rng(0)
  y, client = np.arange(40) % 3, np.arange(40) % 2
  for name, shape in (('color', (6, 6, 3)), ('gray', (6, 6, 1)), ('rows', (6,))):
    np.savez(tmp_path / name, x=rng.normal(size=(40, *shape)), y=y, client=client)
    done = call('data', f'--dataset=npz:{name}.npz', f'--plots={name}', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name / 'examples.png').is_file() == (name != 'rows')
