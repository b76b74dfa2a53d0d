"""Best rounds, means of the last and rounds to a target, on curves made by hand."""

import math

import pytest

from fesem_jax.evaluation import curves
from fesem_jax.tasks import REGRESSION


@pytest.mark.parametrize(
  ('target', 'want'),
  [
    (0.1, 1.0),  # The first measured round has it.
    (0.2, 1.0),
    (0.5, 4.0),  # Halfway between rounds 3 and 5.
    (0.6, 5.0),
    (0.7, 5 + 4 * 0.1 / 0.3),  # The fall to 0.4 in round 7 does not count.
    (0.9, 9.0),
    (0.91, None),
  ],
)
def test_rounds_to_a_target_are_those_of_the_best_so_far(target, want):
  rounds, values = [1, 3, 5, 9], [0.2, 0.4, 0.6, 0.9]
  result = curves.rounds_to(target, rounds, values)
  assert result == (None if want is None else pytest.approx(want))
  # The same curve with a fall in between, where the best so far stays.
  again = curves.rounds_to(target, [1, 3, 5, 7, 9], [0.2, 0.4, 0.6, 0.4, 0.9])
  if target <= 0.6 or want is None:
    assert again == result
  else:
    assert again == pytest.approx(7 + 2 * (target - 0.6) / 0.3)


def test_what_is_no_number_reaches_nothing():
  nan = math.nan
  assert curves.rounds_to(0.5, [1, 2, 3], [nan, nan, 0.6]) == 3.0
  assert curves.rounds_to(0.5, [1, 2, 3], [0.4, nan, 0.6]) == pytest.approx(2.5)
  assert curves.rounds_to(0.5, [1], [nan]) is None
  assert curves.rounds_to(0.5, [], []) is None


def record(number, deployed, finetuned, **more):
  def scores(value):
    return {'micro_accuracy': value, 'macro_f1': value / 2}

  of_both = {'deployed': scores(deployed), 'finetuned': scores(finetuned)}
  return {'round': number, **of_both, **more}


HISTORY = [
  {'round': 0, 'cluster_sizes': [2, 3]}, record(1, 0.3, 0.9),
  {'round': 2, 'train_loss': 1.0}, record(3, 0.8, 0.7), record(4, 0.8, 0.6),
  record(5, 0.5, 0.5),
]  # fmt: skip


def test_the_best_round_is_each_kinds_own_and_the_first_of_equal_ones():
  best = curves.reports(HISTORY)['best']
  assert best['deployed'] == {'micro_accuracy': 0.8, 'macro_f1': 0.4, 'round': 3}
  assert best['finetuned'] == {'micro_accuracy': 0.9, 'macro_f1': 0.45, 'round': 1}


def test_the_mean_is_of_the_last_ten_evaluations():
  mean = curves.reports(HISTORY)['mean10']
  assert mean['evaluations'] == 4
  assert mean['deployed']['micro_accuracy'] == pytest.approx(0.6)
  long = [record(r, r / 100, 0.0) for r in range(1, 31)]
  mean = curves.reports(long)['mean10']
  assert mean['evaluations'] == 10
  assert mean['deployed']['micro_accuracy'] == pytest.approx(0.255)
  assert mean['deployed']['macro_f1'] == pytest.approx(0.1275)


def test_without_examples_to_measure_on_the_last_round_counts():
  history = [record(r, math.nan, math.nan) for r in (1, 2)]
  assert curves.reports(history)['best']['deployed']['round'] == 2


def test_where_clients_are_bad_there_are_reports_of_the_honest_ones():
  history = [
    record(1, 0.9, 0.4, honest=record(0, 0.6, 0.2)),
    record(2, 0.5, 0.8, honest=record(0, 0.1, 0.2)),
  ]
  best, mean = (curves.reports(history)[name] for name in ('best', 'mean10'))
  assert best['deployed'] == {'micro_accuracy': 0.9, 'macro_f1': 0.45, 'round': 1}
  assert best['finetuned']['micro_accuracy'] == 0.8
  assert best['honest']['deployed']['micro_accuracy'] == 0.6
  assert mean['deployed']['micro_accuracy'] == pytest.approx(0.7)
  assert mean['honest']['finetuned']['micro_accuracy'] == pytest.approx(0.2)


def test_targets_are_looked_for_in_both_curves():
  assert curves.rounds_to_targets(HISTORY, [0.55, 0.85]) == [
    {'target': 0.55, 'deployed': pytest.approx(2.0), 'finetuned': 1.0},
    {'target': 0.85, 'deployed': None, 'finetuned': 1.0},
  ]
  assert curves.rounds_to_targets(HISTORY, [0.85], since=3)[0]['finetuned'] is None


def test_less_may_be_better():
  errors = [(4.0, 9.0), (1.0, 9.0), (2.0, 9.0)]
  history = [
    {'round': r, 'deployed': {'micro_rmse': a}, 'finetuned': {'micro_rmse': b}}
    for r, (a, b) in enumerate(errors, 1)
  ]
  best = curves.reports(history, REGRESSION)['best']['deployed']
  assert best == {'micro_rmse': 1.0, 'round': 2}
  (result,) = curves.rounds_to_targets(history, [2.5], REGRESSION)
  assert result == {'target': 2.5, 'deployed': 1.5, 'finetuned': None}
