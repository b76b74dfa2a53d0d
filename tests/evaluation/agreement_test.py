"""Agreement of clusterings is scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics

from fesem_jax.evaluation import agreement


@pytest.mark.parametrize('most', [1, 2, 3, 7])
def test_agreement_is_scikit_learns(most):
  rng = np.random.default_rng(most)
  for size in (1, 2, 5, 60, 60_000):
    for other in (1, 3):
      first, second = rng.integers(0, most, size), rng.integers(0, other, size)
      rand = agreement.adjusted_rand_index(first, second)
      assert rand == metrics.adjusted_rand_score(first, second)
      information = agreement.scores(first, second)['nmi']
      want = metrics.normalized_mutual_info_score(first, second)
      np.testing.assert_allclose(information, want, rtol=1e-12, atol=1e-12)
      adjusted = agreement.scores(first, second)['ami']
      want = metrics.adjusted_mutual_info_score(first, second)
      np.testing.assert_allclose(adjusted, want, rtol=1e-10, atol=1e-12)


def test_the_same_clusters_under_other_names_agree_wholly():
  first = np.array([4, 4, 0, 2, 2, 2])
  second = np.array(['a', 'a', 'c', 'b', 'b', 'b'])
  assert agreement.adjusted_rand_index(first, second) == 1
  assert agreement.scores(first, second)['nmi'] == 1
  assert agreement.scores(first, second)['ami'] == 1
