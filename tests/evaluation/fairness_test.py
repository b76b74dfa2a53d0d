"""Fairness over clients, against sums written from the definitions."""

import math

import numpy as np
import pytest

from fesem_jax.evaluation.fairness import fairness


@pytest.mark.parametrize('higher', [True, False])
@pytest.mark.parametrize('count', [1, 10, 11, 37])
def test_it_is_what_the_definitions_say(count, higher):
  values = np.random.default_rng(count).random(count)
  result = fairness(np.append(values, np.nan), higher)
  ordered = sorted(values.tolist(), reverse=not higher)
  worst = ordered[: math.ceil(count / 10)]
  mean = sum(values) / count
  assert result['clients'] == count
  np.testing.assert_allclose(result['worst_decile'], sum(worst) / len(worst))
  deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / count)
  np.testing.assert_allclose(result['deviation'], deviation, atol=1e-12)
  jain = sum(values) ** 2 / (count * sum(x * x for x in values))
  np.testing.assert_allclose(result['jain'], jain)


def test_what_is_not_defined_is_none():
  assert fairness(np.array([np.nan]), True) == {
    'clients': 0,
    'worst_decile': None,
    'deviation': None,
    'jain': None,
  }
  zeros = fairness(np.zeros(3), True)
  assert (zeros['worst_decile'], zeros['jain']) == (0.0, None)
  assert fairness(np.array([0.3, 0.3]), True)['jain'] == pytest.approx(1.0)
  assert fairness(np.array([1.0, 0.0, 0.0, 0.0]), True)['jain'] == pytest.approx(0.25)


def test_infinite_values_are_among_the_worst():
  values = np.append(np.arange(1.0, 20.0), [np.inf, np.nan])
  assert fairness(values, False) == {
    'clients': 20,
    'worst_decile': math.inf,
    'deviation': None,
    'jain': None,
  }
  assert fairness(values, True)['worst_decile'] == 1.5
