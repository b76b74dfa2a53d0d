"""Methods that add up the clients' models as they finish, and keep none of them."""

import jax
import pytest

from fesem_jax import algorithms
from fesem_jax.training import cohort
from tests.support import helpers
from tests.support.methods import federation


@pytest.fixture
def kept(monkeypatch):
  """Whether each training of a cohort that is traced keeps its models."""
  seen, real = [], cohort.map_all

  def map_all(call, data, reduction):
    seen.append(reduction.keep)
    return real(call, data, reduction)

  monkeypatch.setattr(cohort, 'map_all', map_all)
  return seen


@pytest.mark.parametrize(
  ('name', 'times'),
  [
    ('fed_avg', 1), ('fed_per', 1), ('fed_rep', 1), ('fed_ala', 1), ('apfl', 1),
    ('ditto', 1), ('fed_dyn', 1), ('fed_nova', 1), ('p_fed_me', 1), ('moon', 1),
    ('scaffold', 1), ('fed_cluster', 1), ('oracle', 1),
  ],
)  # fmt: skip
def test_a_round_keeps_no_models_beside_those_of_its_state(name, times, kept):
  # Of many clients they would not fit the memory.
  data, key = federation(), jax.random.key(0)
  algorithm = algorithms.build(name, helpers.local(hidden=(3,)))
  state = jax.eval_shape(algorithm.init, key, data)
  kept.clear()
  jax.eval_shape(algorithm.step, state, data, helpers.everyone(data), key)
  assert kept == [False] * times


def test_clients_from_elsewhere_are_compared_without_keeping_their_models(kept):
  data, key = federation(), jax.random.key(0)
  algorithm = algorithms.build('fed_group', helpers.local(hidden=()), num_clusters=2)
  state = jax.eval_shape(algorithm.init, key, data)
  kept.clear()
  jax.eval_shape(algorithm.unseen_models, state, data)
  assert kept == [False]
