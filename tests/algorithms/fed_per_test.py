"""FedPer, FedRep, FedBABU and LG-FedAvg against references that train by layers."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  models_after,
  run,
  run_cohorts,
  unflatten,
)


def reference_rounds(method, local, data, model, cohorts, head_epochs):
  """Body and each client's head; the head is the last layer."""
  body, heads = model[:-1], [model[-1:]] * len(SIZES)
  last = len(model) - 1

  def train(i, x, batches):
    own = unflatten(x, body) + heads[i]
    if method == 'fed_per':
      own = reference.sgd_of_layers(own, batches(), 0.1, range(last + 1))
    else:
      own = reference.sgd_of_layers(own, batches(epochs=head_epochs), 0.1, [last])
      own = reference.sgd_of_layers(own, batches(), 0.1, range(last))
    heads[i] = own[-1:]
    return reference.flat(own[:-1]), 0.0

  weighting = 'by_examples' if method == 'fed_per' else 'uniform'
  x, *_ = averaged_rounds(local, data, reference.flat(body), cohorts, train, weighting)
  return unflatten(x, body), heads


@pytest.mark.parametrize('method', ['fed_per', 'fed_rep'])
def test_matches_float64_reference(method):
  cohorts = [(0, 3), (3, 4), (1, 0)]
  data, local = federation(), helpers.local(epochs=2, devices=2, hidden=(5, 4))
  options = {'head_epochs': 3} if method == 'fed_rep' else {}
  algorithm = algorithms.build(method, local, **options)
  params = algorithm.client_params(initial(algorithm, data), data, np.arange(1))
  body, heads = reference_rounds(
    method, local, data, reference.from_params(params, 0), cohorts, 3
  )

  _, found = models_after(algorithm, data, cohorts)
  for i, got in enumerate(found):
    assert_close(got, reference.flat(body + heads[i]), rtol=1e-3)


def test_heads_train_in_epochs_even_where_bodies_train_in_steps():
  data, local = federation(), helpers.local(steps=5)
  algorithm = algorithms.build('fed_rep', local, head_epochs=3)
  _, infos = run(algorithm, data, rounds=1)
  assert int(infos[0].steps) == sum(3 * -(-size // 4) + 5 for size in SIZES)


@pytest.mark.parametrize(
  ('head', 'cohorts', 'devices', 'shared_start'),
  [
    (('logits',), [range(6)] * 3, 1, 'off'),
    (('dense1', 'logits'), [(0, 3), (3, 4), (1, 0)], 2, 'on'),
  ],
)
def test_fed_babu_matches_float64_reference(head, cohorts, devices, shared_start):
  data = federation()
  local = helpers.local(epochs=2, devices=devices, hidden=(5, 4))
  local = local._replace(shared_start=shared_start)
  algorithm = algorithms.build('fed_babu', local, head_layers=head)
  before = initial(algorithm, data).params
  model = reference.from_params(before, 0)
  learn = range(len(model) - len(head))

  def train(i, x, batches):
    del i
    own = reference.sgd_of_layers(unflatten(x, model), batches(), 0.1, learn)
    return reference.flat(own), 0.0

  x, *_ = averaged_rounds(local, data, reference.flat(model), cohorts, train)

  state, _ = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)
  for name in head:
    np.testing.assert_array_equal(
      state.params[name]['kernel'], before[name]['kernel'], strict=True
    )


def test_the_head_of_fed_babu_stays_fixed_under_noise():
  sends = differential_privacy(0.1, 2.0, where='client', delta=0)
  local = helpers.local()._replace(sends=sends)
  algorithm = algorithms.build('fed_babu', local)
  data = federation()
  before, after = initial(algorithm, data), run(algorithm, data, rounds=1)[0]
  moved = jax.tree.map(lambda a, b: np.abs(b - a).max(), before.params, after.params)
  heads = moved.pop('logits')
  assert max(jax.tree.leaves(heads)) == 0 < min(jax.tree.leaves(moved))


def test_lg_fed_avg_matches_float64_reference():
  cohorts = [(0, 3), (3, 4), (1, 0)]
  data, local = federation(), helpers.local(epochs=2, devices=2, hidden=(5, 4))
  algorithm = algorithms.build('lg_fed_avg', local)
  params = algorithm.client_params(initial(algorithm, data), data, np.arange(1))
  model = reference.from_params(params, 0)
  bodies, head = [model[:-1]] * len(SIZES), model[-1:]

  def train(i, x, batches):
    own, loss = reference.local_sgd(bodies[i] + unflatten(x, head), batches(), 0.1)
    bodies[i] = own[:-1]
    return reference.flat(own[-1:]), loss

  x, *_ = averaged_rounds(local, data, reference.flat(head), cohorts, train)

  state, found = models_after(algorithm, data, cohorts)
  for i, got in enumerate(found):
    assert_close(got, np.append(reference.flat(bodies[i]), x), rtol=1e-3)
  params = algorithm.client_params(state, data, np.arange(len(SIZES)))
  some = algorithm.client_params(state, data, np.array([2, 0]))
  jax.tree.map(
    lambda x, every: np.testing.assert_array_equal(x, every[np.array([2, 0])]),
    some,
    params,
  )
