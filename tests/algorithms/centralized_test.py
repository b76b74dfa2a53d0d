"""Centralized training against SGD in float64 on the examples of all clients."""

import chex

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.methods import SIZES, federation
from tests.support.runs import simulate

SUM = sum(SIZES)


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
