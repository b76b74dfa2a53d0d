"""Agreement of clusterings is scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics

from fesem_jax.evaluation import agreement


@pytest.mark.parametrize('most', [1, 2, 3, 7])
def test_agreement_is_scikit_learns(most):
  rng = np.random.default_rng(most)
  for size in (1, 2, 5, 60):
    for other in (1, 3):
      first, second = rng.integers(0, most, size), rng.integers(0, other, size)
      rand = agreement.adjusted_rand_index(first, second)
      assert rand == metrics.adjusted_rand_score(first, second)
      information = agreement.figures(first, second)['nmi']
      want = metrics.normalized_mutual_info_score(first, second)
      np.testing.assert_allclose(information, want, rtol=1e-12, atol=1e-12)
      adjusted = agreement.figures(first, second)['ami']
      want = metrics.adjusted_mutual_info_score(first, second)
      np.testing.assert_allclose(adjusted, want, rtol=1e-10, atol=1e-12)


def test_adjusted_information_of_many_clients_and_clusters_keeps_its_digits():
  rng = np.random.default_rng(0)
  for size, most in ((100_000, 4), (3_000, 60), (200, 150)):
    first = rng.integers(0, most, size)
    second = np.where(rng.random(size) < 0.3, first, rng.integers(0, most + 1, size))
    got = agreement.figures(first, second)['ami']
    want = metrics.adjusted_mutual_info_score(first, second)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-12)
  singles = np.arange(50)  # Shares all information, as every such clustering does.
  for other in (singles // 2, singles // 25):
    got = agreement.figures(singles, other)['ami']
    np.testing.assert_allclose(got, 0, atol=1e-12)


def test_random_clusters_of_any_number_have_no_adjusted_information():
  rng = np.random.default_rng(0)
  truth = np.repeat(np.arange(4), 25)
  drawn = {k: [rng.integers(0, k, 100) for _ in range(200)] for k in (2, 20)}
  for each in drawn.values():
    adjusted = [agreement.figures(truth, a)['ami'] for a in each]
    assert abs(np.mean(adjusted)) < 0.01
  plain = [agreement.figures(truth, a)['nmi'] for a in drawn[20]]
  assert np.mean(plain) > 0.15


def test_the_same_clusters_under_other_names_agree_wholly():
  first = np.array([4, 4, 0, 2, 2, 2])
  second = np.array(['a', 'a', 'c', 'b', 'b', 'b'])
  assert agreement.adjusted_rand_index(first, second) == 1
  assert agreement.figures(first, second)['nmi'] == 1
  assert agreement.figures(first, second)['ami'] == 1
