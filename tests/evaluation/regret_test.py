"""Assignments beside the best ones in hindsight, worked out by hand."""

import numpy as np

from fesem_jax.evaluation import regret

# Of five clients; no client has the last center, which would be the best of all.
LOSSES = np.array([
  [1.0, 3.0, 2.0, 0.0],  # Has the best one.
  [5.0, 2.5, 2.0, 0.0],  # Would lose 0.5 less with the third.
  [4.0, 4.0, 4.0, 0.0],  # All are equal: stays with its own.
  [2.0, 7.0, 2.0, 0.0],  # The first of two equal ones.
  [np.inf, 3.0, np.inf, 0.0],  # The others are not finite.
])  # fmt: skip
CHOICE = np.array([0, 1, 2, 1, 1])


def test_regret_and_margin_are_to_the_best_center_that_a_client_has():
  with np.errstate(invalid='raise'):
    found = regret.hindsight(LOSSES, CHOICE)
  assert (found.best.tolist(), found.best.dtype) == ([0, 2, 2, 0, 1], np.int32)
  assert found.regret.tolist() == [0, 0.5, 0, 5, 0]
  assert found.margin.tolist() == [1, -0.5, 0, -5, np.inf]


def test_where_all_clients_have_one_center_there_is_no_other():
  found = regret.hindsight(LOSSES[:4], np.full(4, 2))
  assert found.best.tolist() == [2] * 4
  assert found.regret.tolist() == [0] * 4
  assert np.isnan(found.margin).all()


def test_a_center_without_a_finite_loss_has_no_regret_to_be_counted():
  with np.errstate(invalid='raise'):
    found = regret.hindsight(np.array([[np.inf, np.inf], [1, 2]]), np.array([0, 1]))
  assert np.isnan(found.regret[0])
  assert found.regret[1] == 1
  assert regret.mean_over(found.regret, np.ones(2)) == 1


def test_means_are_of_finite_values_by_weights():
  values = np.array([1.0, 4.0, np.nan, np.inf, 100.0])
  assert regret.mean_over(values, np.array([3, 1, 5, 5, 0])) == 7 / 4
  assert regret.mean_over(values, np.array([0, 0, 1, 1, 0])) is None


def test_records_and_tables_have_the_clients_that_were_measured():
  found = regret.hindsight(LOSSES[:4], CHOICE[:4])
  tested = regret.hindsight(LOSSES[[1, 0, 3, 2]], CHOICE[:4])
  assert tested.regret.tolist() == [3, 2, 0, 0]
  sizes = np.array([1, 2, 3, 4]), np.array([3, 0, 1, 2])
  record = regret.as_record(found, tested, CHOICE[:4], sizes, 0.25)
  assert record['regret'] == {
    'mean': 5.5 / 4, 'by_examples': (2 * 0.5 + 4 * 5) / 10, 'misassigned': 2 / 4,
    'test_mean': 3 / 3, 'test_by_examples': 9 / 6, 'test_gain': 0.25,
  }  # fmt: skip
  assert record['margin'] == {'mean': -4.5 / 4, 'by_examples': (1 - 1 - 20) / 10}
  unknown = regret.as_record(found, tested, CHOICE[:4], sizes, float('nan'))
  assert unknown['regret']['test_gain'] is None
  columns = regret.of_clients(found, tested, sizes)
  assert list(columns) == ['best_cluster', 'regret', 'margin', 'test_regret']
  np.testing.assert_array_equal(columns['test_regret'], [3, np.nan, 0, 0])
  assert columns['best_cluster'].tolist() == [0, 2, 2, 0]
  assert columns['regret'] is found.regret
  assert columns['margin'] is found.margin


def test_of_two_centers_the_other_one_is_the_margin():
  found = regret.hindsight(np.array([[1.0, 4.0], [3.0, 2.5]]), np.array([0, 1]))
  assert found.margin.tolist() == [3, 0.5]


def test_the_share_of_misassigned_clients_is_of_those_with_a_better_center():
  found = regret.hindsight(LOSSES[:3], CHOICE[:3])
  record = regret.as_record(found, found, CHOICE[:3], (np.ones(3), np.ones(3)), 0.0)
  assert record['regret']['misassigned'] == 1 / 3
