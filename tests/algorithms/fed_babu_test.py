"""FedBABU against a reference that trains the body alone."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  run_cohorts,
  unflatten,
)


@pytest.mark.parametrize(
  ('head', 'cohorts', 'devices', 'shared_start'),
  [
    (('logits',), [range(6)] * 3, 1, 'off'),
    (('dense1', 'logits'), [(0, 3), (3, 4), (1, 0)], 2, 'on'),
  ],
)
def test_matches_float64_reference(head, cohorts, devices, shared_start):
  data = federation()
  local = helpers.local(epochs=2, devices=devices, hidden=(5, 4))
  local = local._replace(shared_start=shared_start)
  algorithm = algorithms.build('fed_babu', local, head_layers=head)
  before = initial(algorithm, data).params
  model = reference.from_params(before, 0)
  learn = range(len(model) - len(head))
  for number, cohort in enumerate(cohorts, 1):
    key, trained = jax.random.fold_in(jax.random.key(9), number), []
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      own = reference.sgd_of_layers(model, batches, 0.1, learn)
      trained.append(reference.flat(own))
    sizes = np.array(SIZES)[list(cohort)]
    model = unflatten(np.average(trained, axis=0, weights=sizes), model)

  state, _ = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], reference.flat(model), rtol=1e-3)
  for name in head:
    np.testing.assert_array_equal(
      state.params[name]['kernel'], before[name]['kernel'], strict=True
    )
