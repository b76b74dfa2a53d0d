"""Bad clients lie about what they send, not about what they keep."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.federated_data import Attack
from fesem_jax.data import attacks
from tests.support import helpers
from tests.support.methods import assert_close, federation, initial, matrix, run


@pytest.mark.parametrize(
  ('name', 'personal', 'shared'),
  [
    ('fed_ala', 'heads', 'params'),
    ('fed_dyn', 'client_gradients', 'correction'),
    ('moon', 'client_params', 'params'),
  ],
)
def test_bad_clients_keep_what_they_trained_and_send_the_opposite(
  name, personal, shared
):
  honest = federation()
  bad = Attack(np.ones(6, bool), (attacks.Replacement(),))
  lying = dataclasses.replace(honest, attack=bad)
  algorithm = algorithms.build(name, helpers.local(hidden=(3,)))
  x = matrix(getattr(initial(algorithm, honest), shared))
  a, b = (run(algorithm, data, rounds=1)[0] for data in (honest, lying))
  trained, lied = (matrix(getattr(state, personal)) for state in (a, b))
  assert np.abs(trained).max() > 1e-4
  assert_close(lied, trained, rtol=1e-6, atol=1e-7)
  assert_close(matrix(getattr(b, shared)) - x, x - matrix(getattr(a, shared)))


@pytest.mark.parametrize(
  ('name', 'options', 'personal'),
  [
    ('fed_soft', {'num_clusters': 2}, 'client_params'),
    ('fesem', {'num_clusters': 2, 'init_models': 'random'}, 'client_params'),
  ],
)
def test_some_bad_clients_change_the_centers_and_no_other_client(
  name, options, personal
):
  honest = federation()
  bad = attacks.apply(honest, 'sign_flip', 0.5)
  algorithm = algorithms.build(name, helpers.local(hidden=()), **options)
  init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
  states = []
  for data in (honest, bad):
    state = init(jax.random.key(0), data)
    if name == 'fed_soft':  # Others lie about their first models too.
      state, _ = step(
        jax.device_get(state), data, helpers.everyone(data), jax.random.key(3)
      )
    states.append(state)
  a, b = states
  assert np.abs(matrix(a.centers) - matrix(b.centers)).max() > 1e-3
  trained, lied = (matrix(getattr(state, personal)) for state in (a, b))
  good = ~np.asarray(bad.attack.bad)
  assert_close(lied[good], trained[good], rtol=1e-6)
  if name == 'fesem':
    np.testing.assert_array_equal((trained != lied).any(axis=1), ~good)
