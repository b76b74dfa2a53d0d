"""Regression: loss and figures against scikit-learn."""

import functools

import jax
import numpy as np
import pytest
from sklearn.metrics import mean_squared_error, r2_score, root_mean_squared_error

from fesem_jax.evaluation import evaluate
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.errors import UserError
from tests.support.nights import rest_by_night


def totals_of(truths, guesses, parts=1):
  """What is measured of clients, each in some parts as in batches."""

  def one(y, guess):
    pieces = [
      REGRESSION.measure(g, t, np.ones(len(t), np.float32), y.shape[1])
      for t, g in zip(
        np.array_split(y, parts), np.array_split(guess, parts), strict=True
      )
    ]
    return functools.reduce(REGRESSION.add, pieces)

  each = [one(y, guess) for y, guess in zip(truths, guesses, strict=True)]
  sums = jax.tree.map(lambda *rows: np.stack(rows), *each)
  return evaluate.Totals(np.array([len(y) for y in truths]), sums, {}, None)


def drawn(seed, shift=0.0, sizes=(2, 5, 40, 300), targets=1):
  rng = np.random.default_rng(seed)
  truths = [rng.normal(shift, 2, (n, targets)).astype(np.float32) for n in sizes]
  guesses = [(y + rng.normal(0, 1, y.shape)).astype(np.float32) for y in truths]
  return truths, guesses


@pytest.mark.parametrize('targets', rest_by_night([1, 3]))
@pytest.mark.parametrize('parts', [1, 4])
def test_figures_match_scikit_learn(targets, parts):
  truths, guesses = drawn(0, targets=targets)
  totals = totals_of(truths, guesses, parts)
  metrics = evaluate.client_metrics(totals, REGRESSION)
  for i, (y, guess) in enumerate(zip(truths, guesses, strict=True)):
    mean_square = np.square(y.astype(np.float64) - guess).mean()
    np.testing.assert_allclose(metrics['loss'][i], mean_square, rtol=1e-5)
    np.testing.assert_allclose(metrics['rmse'][i], np.sqrt(mean_square), rtol=1e-5)
    np.testing.assert_allclose(
      metrics['r2'][i], r2_score(y, guess), rtol=1e-4, atol=1e-5
    )
  if targets == 1:
    expected = root_mean_squared_error(truths[2], guesses[2])
    np.testing.assert_allclose(metrics['rmse'][2], expected, rtol=1e-5)
  # Over all examples together, not a mean of the clients' figures.
  y, guess = np.concatenate(truths), np.concatenate(guesses)
  result = evaluate.scores(totals, REGRESSION)
  assert list(result) == list(REGRESSION.columns)
  np.testing.assert_allclose(result['micro_r2'], r2_score(y, guess), rtol=1e-4)
  expected = np.sqrt(mean_squared_error(y, guess))
  np.testing.assert_allclose(result['micro_rmse'], expected, rtol=1e-5)
  np.testing.assert_allclose(result['macro_rmse'], metrics['rmse'].mean(), rtol=1e-12)


def test_examples_of_weight_0_do_not_count():
  rng = np.random.default_rng(2)
  y, outputs = rng.normal(size=(2, 5, 2)).astype(np.float32)
  outputs[[1, 4]] = np.nan  # What is computed of padding may be anything.
  y[1] = np.inf
  kept = [0, 2, 3]
  result = REGRESSION.measure(outputs, y, np.array([1, 0, 1, 1, 0], np.float32), 2)
  y, outputs = (x[kept].astype(np.float64) for x in (y, outputs))
  np.testing.assert_allclose(result.count, 3)
  np.testing.assert_allclose(result.squared, np.square(outputs - y).sum(axis=0), 1e-5)
  np.testing.assert_allclose(result.mean, y.mean(axis=0), rtol=1e-5)
  np.testing.assert_allclose(result.scatter, 3 * y.var(axis=0), rtol=1e-5)


def test_targets_about_a_large_mean_keep_their_spread():
  truths, guesses = drawn(1, shift=1e4)
  result = evaluate.client_metrics(totals_of(truths, guesses, 4), REGRESSION)
  expected = [r2_score(y, g) for y, g in zip(truths, guesses, strict=True)]
  np.testing.assert_allclose(result['r2'], expected, rtol=1e-2, atol=1e-3)


def test_equal_targets_and_clients_without_examples():
  same = np.full((4, 1), 3.0, np.float32)
  none = np.zeros((0, 1), np.float32)
  totals = totals_of([same, same, none], [same, same + 1, none])
  result = evaluate.client_metrics(totals, REGRESSION)
  np.testing.assert_array_equal(result['r2'], [1.0, 0.0, np.nan])
  assert r2_score(same, same) == 1.0
  assert r2_score(same, same + 1) == 0.0
  np.testing.assert_array_equal(result['rmse'], [0.0, 1.0, np.nan])
  assert evaluate.scores(totals, REGRESSION)['macro_rmse'] == 0.5
  empty = evaluate.scores(totals_of([none], [none]), REGRESSION)
  assert np.isnan(list(empty.values())).all()


def test_predictions_that_are_not_numbers_are_no_perfect_ones():
  y = np.full((3, 1), 1.0, np.float32)
  result = evaluate.scores(totals_of([y], [y * np.nan]), REGRESSION)
  assert np.isnan(list(result.values())).all()


@pytest.mark.parametrize('y', [[[[1.0]]], [1.0, np.inf], [1e300], ['a'], [[], []]])
def test_targets_that_do_not_fit_are_refused(y):
  with pytest.raises(UserError, match=r'^y: '):
    REGRESSION.targets(y, 'y', None)


def test_a_single_example_has_an_r2_of_1_or_0_and_counts_like_any_other():
  one, two = np.full((1, 1), 2.0, np.float32), np.array([[0.0], [4.0]], np.float32)
  metrics = evaluate.client_metrics(totals_of([one, one], [one, one + 1]), REGRESSION)
  assert metrics['r2'].tolist() == [1, 0]
  # Errors of 0, 0 and 3, of targets that scatter by 8 about their mean.
  result = REGRESSION.micro(totals_of([two, one], [two, one + 3]).sums)
  np.testing.assert_allclose(result['loss'], 3)
  np.testing.assert_allclose(result['r2'], 1 - 9 / 8)
