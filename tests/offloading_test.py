"""Stacks in the host's memory: the same results as on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, cohorts, offloading
from fesem_jax.base import Cohort
from tests import helpers, methods

# Every method that can keep its clients' models there.
OFFLOADED = [
  ('fesem', {'num_clusters': 2, 'track_objective': True}),
  ('fesem', {'num_clusters': 2, 'init_clients': 4, 'late_joins': True, 'max_age': 1}),
  ('fesem', {'num_clusters': 2, 'init_clients': 4, 'loss_check_every': 2}),
  ('fesem_ma', {'num_clusters': 2}),
  ('non_fed', {}),
  ('ditto', {'ditto_lambda': 0.5}),
]
IDS = [f'{name}-{"-".join(options)}' for name, options in OFFLOADED]
SIZES = [6, 3, 9, 5, 8, 4, 7, 5]


def models_of(tree):
  """The same with all stacks on the host."""
  return jax.tree.map(
    lambda x: offloading.on_host(x) if offloading.is_offloaded(x) else np.asarray(x),
    jax.device_get(tree),
    is_leaf=offloading.is_offloaded,
  )


def run(name, options, state, cohort=None, devices=1, chunk=3):
  local = helpers.local(chunk=chunk, devices=devices)
  algorithm = algorithms.build(name, local, client_state=state, **options)
  data = helpers.federation(SIZES, groups=[0, 1] * 4)
  data, _ = cohorts.arrange(local, data, data)
  last, infos = methods.run(algorithm, data, cohort=cohort)
  program = jax.jit(algorithm.deployed)
  return models_of(last), infos, models_of(program(last, data))


def assert_same(a, b):
  """Equal but for the last digits: other programs add up in another order."""
  assert jax.tree.structure(a) == jax.tree.structure(b)

  def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)

  jax.tree.map(close, a, b)


def some(number):
  """Some clients of each round, and an empty place."""
  ids = np.random.default_rng(number).permutation(8)[:3]
  return Cohort(np.append(ids, 8).astype(np.int32), everyone=False)


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('cohort', [None, some], ids=['everyone', 'some'])
@pytest.mark.parametrize(('name', 'options'), OFFLOADED, ids=IDS)
def test_the_same_results_as_on_the_devices(name, options, cohort, devices):
  kept = run(name, options, 'stacked', cohort, devices)
  offloaded = run(name, options, 'offloaded', cohort, devices)
  assert_same(kept, offloaded)
