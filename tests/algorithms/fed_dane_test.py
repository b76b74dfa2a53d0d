"""FedDANE with two cohorts, each known from its draw."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import selection
from fesem_jax.core.types import Cohort
from fesem_jax.run.simulation import simulate
from tests.support import draws, helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  reference_gradient,
  unflatten,
)
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(('name', 'places'), rest_by_night([
    ('two cohorts', [1, 4, 5]),
    ('one cohort', [1, 6, 4]),
    ('an empty place', [1, 6, 4]),  # Nor is it in the first cohort.
    ('all clients', None),
], by_day=2))  # fmt: skip
def test_fed_dane_matches_float64_reference(name, places):
  data, local, key = federation(), helpers.local(epochs=2), jax.random.key(7)
  options = {'prox_mu': 0.4, 'same_cohort': name == 'one cohort'}
  algorithm = algorithms.build('fed_dane', local, **options)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  if places is None:
    cohort, ids = helpers.everyone(data), list(range(6))
  else:
    cohort = Cohort(np.array(places, np.int32), everyone=False)
    ids = [i for i in places if i < 6]
  first = ids
  if name not in ('all clients', 'one cohort'):
    first = draws.first_cohort(key, data, len(ids))
    assert set(first) != set(ids)

  gradients = [reference_gradient(model, data, i) for i in range(6)]
  g = np.mean([gradients[i] for i in first], axis=0)
  ends = []
  for i in ids:
    batches = helpers.batches(data, local.schedule, i, key)
    correction = unflatten(g - gradients[i], model)
    end, _ = reference.local_sgd(model, batches, 0.1, 0.2, correction)
    ends.append(reference.flat(end))
  after, info = jax.jit(algorithm.step)(state, data, cohort, key)
  got = reference.flat(reference.from_params(after.params, 0))
  assert_close(got, np.mean(ends, axis=0), rtol=1e-3)
  assert int(info.trained) == len(ids)


def test_without_a_gradient_of_the_first_cohort_nothing_is_corrected():
  data, rate = federation(), 0.5
  local = helpers.local(hidden=())._replace(dropout_rate=rate)
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  average = algorithms.build('fed_avg', local, weighting='uniform')
  cohort = Cohort(np.array([1], np.int32), everyone=False)
  for key in jax.random.split(jax.random.key(0), 100):
    (first,) = draws.first_cohort(key, data, 1)
    first_drops = draws.drops_out(key, data, first, rate)
    if first_drops and not draws.drops_out(key, data, 1, rate):
      break
  state = initial(algorithm, data)
  got, info = jax.jit(algorithm.step)(state, data, cohort, key)
  start = initial(average, data)._replace(params=state.params)
  want, _ = jax.jit(average.step)(start, data, cohort, key)
  assert int(info.trained) == 1
  jax.tree.map(np.testing.assert_allclose, got.params, want.params)


def test_one_client_in_each_cohort_is_enough_to_correct_by():
  # Of one full-batch step: c - rate * (g_2 + g_1 - g_2), g_1 of the first cohort.
  data = helpers.federation([6, 4, 1])
  local = helpers.local(batch_size=0, steps=1, hidden=())
  algorithm = algorithms.build('fed_dane', local, prox_mu=0.0)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  key = next(
    k for k in map(jax.random.key, range(99)) if draws.first_cohort(k, data, 1) != [2]
  )
  cohort = Cohort(np.array([2], np.int32), everyone=False)
  after, _ = jax.jit(algorithm.step)(state, data, cohort, key)
  (first,) = draws.first_cohort(key, data, 1)
  want = reference.flat(model) - 0.1 * reference_gradient(model, data, first)
  assert_close(reference.flat(reference.from_params(after.params, 0)), want)


def test_a_selection_chooses_the_clients_of_both_cohorts():
  data, local = federation(), helpers.local(hidden=())
  options = {
    'rounds': 1,
    'clients_per_round': selection.Selection(2, lambda *_: [0, 3]),
  }
  method = algorithms.build('fed_dane', local, same_cohort=True)
  assert simulate(method, data, data, **options).history[-1]['trained'] == 2
