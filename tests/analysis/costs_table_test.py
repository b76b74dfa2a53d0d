"""Rounds to a share of the oracle's accuracy, and costs over FedAvg's."""

import numpy as np
import pytest

from fesem_jax import tasks
from fesem_jax.analysis import costs_table, tables
from fesem_jax.run.results import curves


def summary(algorithm, accuracies, seconds=1.0, sent=100, rounds=(2, 4, 6), **more):
  """Of a run with these deployed accuracies after these rounds."""
  figures = dict.fromkeys(
    ('micro_accuracy', 'macro_accuracy', 'micro_f1', 'macro_f1'), accuracies[-1]
  )
  return {
    'algorithm': algorithm, 'deployed': figures, 'finetuned': figures,
    'clusters': None, 'timing': {'seconds_per_round': seconds},
    'clients_without_test_examples': 0,
    'costs': {'bytes_down': sent, 'bytes_up': sent},
    'curve': {'rounds': list(rounds), 'deployed': list(accuracies)},
  } | more  # fmt: skip


def table_of(summaries, oracle=''):
  found = costs_table.rows(summaries, oracle)
  return costs_table.of_methods(tables.over_seeds(summaries), found).as_markdown()


def test_targets_are_of_the_oracle_with_the_same_seed():
  summaries = {
    'fed_avg': [summary('fed_avg', (0.1, 0.3, 0.5)), None],
    'fesem(2)': [
      # 95 % of 0.8 is 0.76, a quarter of the way from 0.74 to 0.82.
      summary('fesem', (0.5, 0.74, 0.82), seconds=1.5, sent=200),
      # 95 % of 0.6 is 0.57: at the second evaluation.
      summary('fesem', (0.5, 0.57, 0.55), seconds=2.5, sent=200),
    ],
    'told': [summary('oracle', (0.7, 0.7, 0.8)), summary('oracle', (0.9, 0.6, 0.6))],
  }
  fed_avg, fesem, told = costs_table.rows(summaries, 'told')
  assert (fed_avg['rounds'], fed_avg['reached'], fed_avg['seeds']) == (None, 0, 2)
  np.testing.assert_allclose(fesem['rounds'], (4.25, np.std([4.5, 4.0], ddof=1)))
  # The best so far counts, so that a later loss does not undo what was reached.
  np.testing.assert_allclose(told['rounds'], (3.6, np.std([5.2, 2.0], ddof=1)))
  assert [r['seconds_per_round'] for r in (fed_avg, fesem)] == [1, 2]
  assert [r['gigabytes'] for r in (fed_avg, fesem)] == [1, 2]
  text = table_of(summaries, 'told')
  assert '95 % of the oracle' not in text
  assert '95 % of oracle' in text
  assert '| fed_avg | 1 | 1.00 | 0.2 | 1.00 | not reached | 0 of 2 |' in text
  assert '| fesem(2) | 2 | 2.00 | 0.4 | 2.00 | 4.2 ± 0.4 | 2 of 2 |' in text


def test_rounds_are_those_of_the_honest_clients():
  def record(number, of_all, of_honest):
    own = {'deployed': {'micro_accuracy': of_honest}}
    return {'round': number, 'deployed': {'micro_accuracy': of_all}, 'honest': own}

  history = [record(2, 0.1, 0.5), record(4, 0.2, 0.8)]
  plain = {'algorithm': 'oracle'}
  assert costs_table.with_curve(plain, history)['curve']['deployed'] == [0.5, 0.8]
  for each in history:
    each |= {'finetuned': each['deployed']}
    each['honest'] |= {'finetuned': each['honest']['deployed']}
  (reached,) = curves.rounds_to_targets(history, [0.65])
  assert (reached['deployed'], reached['finetuned']) == (3, 3)
  honest = {k: {'micro_accuracy': 1.0} for k in ('deployed', 'finetuned')}
  told = [summary('oracle', (0.5, 0.5, 0.8), honest=honest)]
  assert costs_table.rows({'told': told}, 'told')[0]['reached'] == 0
  told[0]['evaluated_on'] = 'validation'
  both = {'told': told, 'b': [summary('fesem', (0.5, 0.6, 0.9))]}
  said = 'accuracy, honest clients, validation examples, reaches'
  assert said in table_of(both, 'told')


def test_some_seeds_reach_it():
  runs = [summary('fesem', (0.1, 0.2, last)) for last in (0.9, 0.3)]
  told = [summary('oracle', (0.8, 0.8, 0.8))] * 2
  summaries = {'fesem(2)': runs, 'oracle': told}
  found = costs_table.rows(summaries, 'oracle')
  assert '| 1 of 2 |' in table_of(summaries, 'oracle')
  # Without FedAvg, there is nothing that costs are multiples of.
  assert found[0]['gigabytes'] is None
  assert 'FedAvg' not in table_of(summaries, 'oracle')


@pytest.mark.parametrize('oracle', ['', 'oracle'])
def test_one_evaluation_is_no_curve(oracle):
  summaries = {
    name: [summary(name, (0.5,), rounds=(6,))] for name in ('fed_avg', 'oracle')
  }
  found = costs_table.rows(summaries, oracle)
  assert [r['rounds'] for r in found] == [None, None]
  assert 'rounds to' not in table_of(summaries, oracle)


def test_nothing_to_be_relative_to():
  text = table_of({'fesem(2)': [summary('fesem', (0.1, 0.2, 0.3))]})
  assert '| method | s/round | kB |' in text
  # An error, such as the RMSE of a regression, has no share that is near it.
  rmse = dict.fromkeys(tasks.REGRESSION.columns, 1.0)
  of_regression = {'task': 'regression', 'deployed': rmse, 'finetuned': rmse}
  told = [summary('oracle', (0.8, 0.8, 0.8), **of_regression)]
  assert 'of oracle' not in table_of({'oracle': told, 'a': told}, 'oracle')
