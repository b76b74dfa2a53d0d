"""Rounds without clients, and clients from elsewhere."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import federation, initial, run
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
  empty, step = Cohort(np.full(2, 6, np.int32), False), jax.jit(algorithm.step)
  for before in (initial(algorithm, data), run(algorithm, data, rounds=1)[0]):
    after, _ = step(jax.device_get(before), data, empty, jax.random.key(1))
    assert_equal(after, before)
