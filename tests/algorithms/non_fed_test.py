"""NonFed against float64."""

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
  run,
)


def test_non_fed_matches_float64_reference():
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build('non_fed', local)
  own = [
    reference.from_params(initial(algorithm, data).client_params, i) for i in range(6)
  ]
  drawn = [[0, 3, 5], [3, 1, 4]]
  for r, ids in enumerate(drawn, 1):
    key = jax.random.fold_in(jax.random.key(9), r)
    trained = reference_round(local, data, [own[i] for i in ids], ids, key)
    for i, w in zip(ids, trained, strict=True):
      own[i] = w

  def cohort(r):
    return Cohort(np.array(drawn[r - 1], np.int32), everyone=False)

  state, _ = run(algorithm, data, rounds=2, cohort=cohort)
  assert_close(
    reference.vectors(state.client_params), [reference.flat(w) for w in own], rtol=1e-3
  )
  start = matrix(initial(algorithm, data).client_params)
  np.testing.assert_array_equal(matrix(state.client_params)[2], start[2])
