"""FedPer and FedRep against references that train layer by layer."""

import chex
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
  models_after,
  run,
  unflatten,
)


def reference_rounds(method, local, data, model, cohorts, head_epochs):
  """Body and each client's head; the head is the last layer."""
  body, heads = model[:-1], [model[-1:]] * len(SIZES)
  last = len(model) - 1
  for number, cohort in enumerate(cohorts, 1):
    key = jax.random.fold_in(jax.random.key(9), number)
    trained = []
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      if method == 'fed_per':
        own = reference.sgd_of_layers(body + heads[i], batches, 0.1, range(last + 1))
      else:
        schedule = local.schedule._replace(epochs=head_epochs)
        first = helpers.batches(data, schedule, i, key)
        own = reference.sgd_of_layers(body + heads[i], first, 0.1, [last])
        own = reference.sgd_of_layers(own, batches, 0.1, range(last))
      heads[i] = own[-1:]
      trained.append(reference.flat(own[:-1]))
    sizes = np.array(SIZES)[list(cohort)]
    weights = sizes if method == 'fed_per' else np.ones(len(cohort))
    body = unflatten(np.average(trained, axis=0, weights=weights), body)
  return body, heads


@pytest.mark.parametrize(
  ('cohorts', 'devices'),
  [
    pytest.param([range(6)] * 3, 1, marks=pytest.mark.nightly),
    ([(0, 3), (3, 4), (1, 0)], 2),
  ],
)
@pytest.mark.parametrize('method', ['fed_per', 'fed_rep'])
def test_matches_float64_reference(method, cohorts, devices):
  data, local = federation(), helpers.local(epochs=2, devices=devices, hidden=(5, 4))
  options = {'head_epochs': 3} if method == 'fed_rep' else {}
  algorithm = algorithms.build(method, local, **options)
  params = algorithm.client_params(initial(algorithm, data), data, np.arange(1))
  body, heads = reference_rounds(
    method, local, data, reference.from_params(params, 0), cohorts, 3
  )

  _, found = models_after(algorithm, data, cohorts)
  for i, got in enumerate(found):
    assert_close(got, reference.flat(body + heads[i]), rtol=1e-3)


def test_heads_differ_and_the_body_is_stored_once():
  data = federation()
  algorithm = algorithms.build('fed_per', helpers.local())
  state, _ = run(algorithm, data)
  used = algorithm.deployed(state, data)
  assert used.shared['logits'] is None
  assert used.own['dense0'] is None
  assert used.shared['dense0']['kernel'].shape[0] == 1
  kernels = np.asarray(used.own['logits']['kernel'])
  assert len(np.unique(kernels.reshape(len(SIZES), -1), axis=0)) == len(SIZES)
  assert used.clusters() is None


@pytest.mark.parametrize('method', ['fed_per', 'fed_rep'])
def test_the_head_may_have_several_layers(method):
  data, local = federation(), helpers.local(hidden=(5, 4))
  algorithm = algorithms.build(method, local, head_layers=['dense1', 'logits'])
  state, _ = run(algorithm, data)
  assert [n for n, x in state.body.items() if x is not None] == ['dense0']
  before = initial(algorithm, data)
  for name in ('dense1', 'logits'):
    chex.assert_tree_all_finite(state.heads[name])
    moved = state.heads[name]['kernel'] - before.heads[name]['kernel']
    assert (np.abs(moved).max(axis=(1, 2)) > 1e-4).all()


def test_fed_per_of_one_client_is_fed_avg():
  data, local = helpers.federation([7]), helpers.local()
  per, average = (algorithms.build(n, local) for n in ('fed_per', 'fed_avg'))
  got = per.client_params(run(per, data)[0], data, np.arange(1))
  chex.assert_trees_all_close(got, run(average, data)[0].params, rtol=1e-5, atol=1e-6)


def test_heads_train_in_epochs_even_where_bodies_train_in_steps():
  data, local = federation(), helpers.local(steps=5)
  algorithm = algorithms.build('fed_rep', local, head_epochs=3)
  _, infos = run(algorithm, data, rounds=1)
  assert int(infos[0].steps) == sum(3 * -(-size // 4) + 5 for size in SIZES)
