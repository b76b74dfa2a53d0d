"""Centralized training against SGD in float64 on the examples of all clients."""

import chex
import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from tests.support import helpers, reference
from tests.support.methods import SIZES, assert_close, federation, initial, run
from tests.support.random_federations import cohort_of
from tests.support.runs import simulate

SUM = sum(SIZES)


def batches(data, key, steps, width):
  """The first steps of epochs over all examples, each in a new order."""
  x, y = np.asarray(data.x), np.asarray(data.y)
  found, epoch = [], 0
  while len(found) < steps:
    order = helpers.order_of(jax.random.fold_in(key, 0), epoch, SUM)
    found += [
      (x[order[i : i + width]], y[order[i : i + width]]) for i in range(0, SUM, width)
    ]
    epoch += 1
  return found[:steps]


@pytest.mark.parametrize(('batch_size', 'cohort'), [(4, (0, 3)), (0, range(6))])
def test_matches_float64_reference(batch_size, cohort):
  data = federation()
  local = helpers.local(batch_size=batch_size, epochs=2)
  algorithm = algorithms.build('centralized', local)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  key = jax.random.key(4)
  ids = cohort_of(list(cohort)) if len(cohort) < 6 else helpers.everyone(data)
  state, info = jax.jit(algorithm.step)(state, data, ids, key)
  width = batch_size or max(SIZES)
  steps = 2 * sum(-(-SIZES[i] // width) for i in cohort)
  assert int(info.steps) == steps
  assert int(info.trained) == len(cohort)
  model, loss = reference.local_sgd(model, batches(data, key, steps, width), 0.1)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)
  assert_close(info.train_loss, loss, rtol=1e-4)


def test_takes_as_many_steps_as_fed_avg():
  data, local = federation(), helpers.local(epochs=2, hidden=())
  local = local._replace(dropout_rate=0.4)
  infos = [run(algorithms.build(n, local), data)[1] for n in ('centralized', 'fed_avg')]
  for own, other in zip(*infos, strict=True):
    assert int(own.steps) == int(other.steps) > 0
    assert int(own.trained) == int(other.trained)


def test_runs_are_the_same_on_two_devices():
  data, results = federation(), []
  for devices in (1, 2):
    algorithm = algorithms.build(
      'centralized', helpers.local(devices=devices, hidden=())
    )
    result = simulate(
      algorithm, data, data, rounds=2, progress=False,
      finetune_epochs=0,
      data_placement='sharded' if devices == 2 else 'replicated',
    )  # fmt: skip
    results.append(result)
  one, two = (r.deployed.params() for r in results)
  chex.assert_trees_all_close(one, two, rtol=1e-5, atol=1e-6)
  costs = results[0].summary['costs']
  # All examples go up once: 6 features and a label of 4 bytes each.
  assert costs['bytes_up'] == SUM * 7 * 4
  assert costs['bytes_down'] == 0
