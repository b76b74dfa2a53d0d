"""Rounds without clients, and clients from elsewhere."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import federation, initial
from tests.support.random_federations import assert_equal


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('clove', {'num_clusters': 2}),  # Whose first clusters are random.
    ('fed_ala', {}),  # In whose first round no weights are learned.
    ('fed_group', {'num_clusters': 2}),
    ('fed_dyn', {}),
  ],
)
def test_a_round_without_clients_changes_nothing(name, options):
  data, hidden = federation(), (3,) if name == 'fed_ala' else ()
  algorithm = algorithms.build(name, helpers.local(hidden=hidden), **options)
  some, empty = (Cohort(np.array(ids, np.int32), False) for ids in ([0, 1], [6, 6]))
  key, step = jax.random.key(1), jax.jit(algorithm.step)
  start = jax.device_get(initial(algorithm, data))
  for before in (start, step(start, data, some, key)[0]):
    after, _ = step(jax.device_get(before), data, empty, key)
    assert_equal(after, before)
