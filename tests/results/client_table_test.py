"""Frames of clients: written, read, and extended."""

import numpy as np
import pandas as pd
import pytest

import fesem_jax as fj
from fesem_jax.run.results import client_table
from fesem_jax.tasks import CLASSIFICATION

METRICS = ('deployed_accuracy', 'deployed_f1', 'finetuned_accuracy', 'finetuned_f1')


def table(count=4, seed=0, **columns):
  """A frame of clients of which the last has no test examples."""
  rng = np.random.default_rng(seed)
  metrics = rng.random((4, count))
  metrics[:, -1] = np.nan
  made = {
    'client': np.array([f'c{i}' for i in range(count)], object),
    'examples': np.arange(count) + 10, 'test_examples': np.arange(count)[::-1],
    'cluster': np.arange(count) % 2, **dict(zip(METRICS, metrics, strict=True)),
  }  # fmt: skip
  for name in ('client', 'true_cluster'):
    if (columns := made | columns).get(name, np.zeros(1)).dtype == object:
      columns[name] = pd.Series(columns[name], dtype=object)
  return pd.DataFrame(made | columns)


@pytest.mark.parametrize('columns', [
    {}, {'honest': np.arange(4) > 0, 'best': np.arange(4)},
    {'client': np.array(['a,b', 'NA', '', 'c"d\ne'], object)},
    {'true_cluster': np.array(['Thai', '', '01', 'NA'], object)},
    {'true_cluster': np.array([0, 3, 10, -1])},
    {'deployed_a"b,c': [1 / 3, np.inf, np.nan, 4], 'gain': [1.0, np.nan, 3, 4]},
])  # fmt: skip
def test_a_file_has_what_was_written(columns, tmp_path):
  made = table(**columns)
  client_table.write(tmp_path, made)
  pd.testing.assert_frame_equal(client_table.read(tmp_path), made, check_exact=True)


@pytest.mark.parametrize(('old', 'new'), [
    (',7.5\n', ',many\n'), ('"c1",11', '"c1",x'),
])  # fmt: skip
def test_damaged_columns_are_refused(old, new, tmp_path):
  client_table.write(tmp_path, table(finetuned_x=np.full(4, 7.5)))
  path = tmp_path / 'clients.csv'
  path.write_text(path.read_text().replace(old, new, 1))
  with pytest.raises(fj.UserError, match=r'clients\.csv'):
    client_table.read(tmp_path)


@pytest.mark.parametrize(('columns', 'subject'), [
    ({'examples': np.arange(4)}, 'taken'), ({'deployed_x': np.arange(4)}, 'taken'),
    ({'x': np.arange(3)}, 'a number'), ({'x': list('abcd')}, 'a number'),
])  # fmt: skip
def test_columns_that_do_not_fit_are_refused(columns, subject):
  assert client_table.with_columns(table(), {'x': np.arange(4)}, 'f')['x'][3] == 3
  with pytest.raises(fj.UserError, match=subject):
    client_table.with_columns(table(), columns, 'f')


def test_fairness_is_of_honest_clients():
  made = table(30, honest=np.arange(30) >= 10)
  result = client_table.fairness_of(made, CLASSIFICATION.primary)
  assert result['deployed']['clients'] == 19
  worst = np.sort(made.deployed_accuracy[10:29])[:2].mean()
  assert result['deployed']['worst_decile'] == pytest.approx(worst)
