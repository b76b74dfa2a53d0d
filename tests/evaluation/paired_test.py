"""Differences between methods are paired over seeds, with SciPy's interval."""

import math

import numpy as np
import pytest
from scipy import stats

from fesem_jax.evaluation import paired
from fesem_jax.utils.errors import UserError

NAN = math.nan


@pytest.mark.parametrize('count', [2, 3, 5, 40])
def test_intervals_are_scipys(count):
  rng = np.random.default_rng(count)
  a, b = rng.normal(90, 3, count), rng.normal(88, 2, count)
  test = stats.ttest_rel(a, b)
  interval = test.confidence_interval()
  result = paired.paired_difference(list(a), list(b))
  want = (np.mean(a - b), interval.low, interval.high, test.pvalue)
  np.testing.assert_allclose(result, want, rtol=1e-12)


def test_metrics_near_each_other_keep_their_digits():
  offset = 2.0**30
  result = paired.paired_difference([offset + 1, offset + 2], [offset, offset])
  assert result.mean == 1.5
  # The quantile of one degree of freedom is tan(0.475 pi).
  half = math.tan(0.475 * math.pi) * 0.5
  np.testing.assert_allclose(result[1:3], [1.5 - half, 1.5 + half], rtol=1e-12)


@pytest.mark.parametrize(('a', 'b', 'want'), [
    ([3.0], [1.0], (2, NAN, NAN, NAN)), ([3.0, 5.0], [1.0, 3.0], (2, NAN, NAN, NAN)),
    ([3.0, 5.0], [3.0, 5.0], (0, 0, 0, 1)),
    ([np.inf, 1.0], [0.0, 1.0], (np.inf, NAN, NAN, NAN)),
    # Of 34 test examples: 30 and 27, 28 and 25; equal but for rounding.
    ([100 * (30 / 34), 100 * (28 / 34)], [100 * (27 / 34), 100 * (25 / 34)],
     (300 / 34, NAN, NAN, NAN)),
])  # fmt: skip
def test_differences_that_do_not_vary_have_no_interval(a, b, want):
  np.testing.assert_allclose(paired.paired_difference(a, b), want, rtol=1e-12)


@pytest.mark.parametrize('count', [1, 2, 5])
def test_holm_is_his_step_down_method(count):
  p = np.random.default_rng(count).uniform(0, 0.2, count)
  # The k-th smallest times those that are left; never below a smaller one's.
  want = [
    min(1, max((count - k) * q for k, q in enumerate(sorted(p)) if q <= p_value))
    for p_value in p
  ]
  result = paired.holm([NAN, *p])
  np.testing.assert_allclose(result, [NAN, *want], rtol=1e-12)


@pytest.mark.parametrize(('a', 'b'), [([], []), ([1], [1, 2]), ([[1]], [[2]])])
def test_what_is_no_pairs_is_refused(a, b):
  with pytest.raises(UserError, match='paired_difference'):
    paired.paired_difference(a, b)
