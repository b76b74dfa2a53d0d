"""FedBABU against a reference that trains the body alone."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.federated_data import Corruption
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
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

  def cohort_of(number):
    ids = np.array(cohorts[number - 1], np.int32)
    return Cohort(ids, everyone=len(ids) == len(SIZES))

  state, _ = run(algorithm, data, rounds=len(cohorts), cohort=cohort_of)
  assert_close(reference.vectors(state.params)[0], reference.flat(model), rtol=1e-3)
  for name in head:
    np.testing.assert_array_equal(
      state.params[name]['kernel'], before[name]['kernel'], strict=True
    )


def test_bad_clients_lie_about_bodies_alone():
  data, bad = federation(), Corruption(np.arange(6) < 2, 'noise')
  algorithm = algorithms.build('fed_babu', helpers.local())
  before = initial(algorithm, data).params
  honest, lied = (
    run(algorithm, each, rounds=1)[0].params
    for each in (data, dataclasses.replace(data, corruption=bad))
  )
  np.testing.assert_array_equal(matrix(lied['logits']), matrix(before['logits']))
  assert np.abs(matrix(lied['dense0']) - matrix(honest['dense0'])).max() > 1e-3


def test_a_head_must_be_a_part_of_the_model():
  with pytest.raises(UserError, match='`head_layers=dense7`: the model has no layer'):
    algorithms.build('fed_babu', helpers.local(), head_layers=['dense7'])
