"""Clients that gain and lose against FedAvg, by seed."""

import numpy as np

from fesem_jax.analysis import clients_table
from fesem_jax.run.results import client_table
from fesem_jax.tasks import CLASSIFICATION
from tests.support.reported import table_of

NAMES = np.array(['x', 'y', 'z', 'v'])


def run(*accuracies, names=NAMES):
  held = {'names': names, 'deployed': np.array(accuracies)}
  return {'task': 'classification', 'of_clients': held}


def test_clients_gain_and_lose_within_a_seed():
  lost = np.nan  # Without test examples.
  summaries = {
    'fed_avg': [run(0.5, 0.5, 0.5, lost), run(0.5, 0.6, 0.7, 0.8)],
    'a': [run(0.6, 0.5, 0.4, lost), run(0.4, 0.7, 0.6, 0.9)],
    'b': [run(0.6, 0.6, 0.4, lost), None],
    'oracle': [run(0.9, 0.9, 0.9, 0.9), run(0.9, 0.9, 0.9, 0.9)],
    'other': [run(1.0, 1.0, 1.0, 1.0, names=NAMES[::-1]), None],
  }
  a, b, _, base = found = clients_table.rows(summaries, 'fed_avg', 'oracle')
  assert (a['seeds'], a['gain'], a['lose']) == (2, (1.5, np.std([1, 2], ddof=1)), (
    1.5, np.std([1, 2], ddof=1)))  # fmt: skip
  assert (b['seeds'], b['gain'], b['equal'], b['lose']) == (
    1, (2, None), (0, None), (1, None)
  )  # fmt: skip
  # The oracle does not count, nor methods whose clients are others.
  always = [(0, 'z'), (1, 'x'), (1, 'z')]
  assert base == {'method': 'fed_avg', 'lose_always': always, 'of': ''}
  text = clients_table.table(found).as_markdown()
  assert '| b | 2.0 | 0.0 | 1.0 |' in text
  assert 'Seeds of which figures are known: b 1 of 2.' in text
  assert clients_table.table(clients_table.rows({'fed_avg': []}, 'fed_avg')) is None


def test_bad_clients_neither_gain_nor_lose():
  table = table_of(['a', 'b', 'c', 'd'])
  honest = np.array([True, True, False, True])
  own = clients_table.with_clients({}, table._replace(honest=honest))['of_clients']
  assert own['names'] == ['a', 'b', 'd']
  assert own['deployed'][2] == table.deployed_accuracy[3]
  spread = client_table.fairness_of(
    table._replace(honest=honest), CLASSIFICATION.primary
  )
  assert spread['deployed']['clients'] == 1  # The first two have no test examples.


def test_errors_gain_where_they_fall():
  def of(*errors):
    held = {'names': NAMES[:2], 'deployed': np.array(errors)}
    rmse = {'micro_rmse': 1.0}
    return {'task': 'regression', 'deployed': rmse, 'of_clients': held}

  found = clients_table.rows(
    {'fed_avg': [of(1.0, 2.0)], 'a': [of(0.5, 2.5)]}, 'fed_avg'
  )
  assert (found[0]['gain'][0], found[0]['lose'][0]) == (1, 1)
  assert found[1]['lose_always'] == [(0, 'y')]


def test_seeds_are_named_as_runs_name_them():
  def of(x):
    held = {'names': ['a'], 'deployed': np.array([x])}
    return {'deployed': {'micro_accuracy': x}, 'of_clients': held, 'seed': 7}

  runs = {'fed_avg': [of(0.5)], 'a': [of(0.4)], 'b': [of(0.3)]}
  found = clients_table.rows(runs, 'fed_avg')
  assert found[-1]['lose_always'] == [(7, 'a')]
