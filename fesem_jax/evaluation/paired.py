"""Differences between two methods, paired over seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.utils.errors import check

LEVEL = 0.95
# Differences of metrics this near each other, relative to the metrics, are equal.
_ROUNDING = 10 * np.finfo(np.float64).eps

# How p values are corrected for the number of methods.
CORRECTIONS = ('none', 'holm')


class Difference(NamedTuple):
  """A mean difference and its 95 % interval."""

  mean: float
  low: float  # lower end of the interval; NaN where there is none
  high: float  # upper end
  p: float  # of the paired t-test, two-sided


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
  """The mean of a - b with Student's 95 % interval, and its paired t-test.

  The pairs are the independent repeats of an experiment, such as its seeds. Clients of
  one run share models and are no independent repeats. `a` and `b` are [N] metrics of
  two methods in the same order.

  There are no interval and p with one pair, nor where all differences are equal but for
  rounding, which says nothing of how they vary; equal metrics have an interval of no
  width and p is 1. Raises `UserError` without pairs, or if the lengths differ.
  """
  first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
  pairs = first.shape == second.shape and first.ndim == 1 and len(first) > 0
  check(pairs, f'paired_difference: shapes {first.shape} and {second.shape} differ')
  with np.errstate(invalid='ignore'):  # Of infinite metrics, there is no interval.
    differences = first - second
    mean = float(differences.mean())
  if len(first) > 1 and not differences.any():
    return Difference(0.0, 0.0, 0.0, 1.0)
  size = max(np.abs(first).max(), np.abs(second).max())
  varies = len(first) > 1 and np.isfinite(size)
  if not varies or np.ptp(differences) <= _ROUNDING * size:
    return Difference(mean, math.nan, math.nan, math.nan)
  from scipy import special  # Slow to import, but not as slow as `scipy.stats`.

  error = float(differences.std(ddof=1)) / math.sqrt(len(first))
  width = student_quantile(len(first)) * error
  p = 2 * float(special.stdtr(len(first) - 1, -abs(mean) / error))
  return Difference(mean, mean - width, mean + width, p)


def holm(p_values: Sequence[float]) -> np.ndarray:
  """P values corrected for their number by Holm's step-down method (1979).

  `p_values` are [N]; those that are NaN stay NaN and do not count.
  """
  p = np.asarray(p_values, np.float64)
  order = np.argsort(p, kind='stable')[: np.count_nonzero(~np.isnan(p))]
  steps = np.maximum.accumulate((len(order) - np.arange(len(order))) * p[order])
  adjusted = np.full(len(p), np.nan)
  adjusted[order] = np.minimum(steps, 1)
  return adjusted


def student_quantile(count: float) -> float:
  """Quantile of Student's 95 % interval of a mean of `count` values."""
  from scipy import special  # Slow to import.

  return float(special.stdtrit(count - 1, (1 + LEVEL) / 2))
