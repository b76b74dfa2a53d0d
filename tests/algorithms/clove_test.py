"""CLoVE against float64, and the clusters that it finds."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from fesem_jax.algorithms.clove import CloveState
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  deployed,
  federation,
  matrix,
  run,
)


def test_who_has_yet_to_take_part_deploys_the_model_of_least_loss():
  data, local = federation(), helpers.local(hidden=())
  algorithm = algorithms.build('clove', local, num_clusters=2)
  cohort = Cohort(np.array([0, 1, 4], np.int32), everyone=False)
  state, infos = run(algorithm, data, cohort=lambda _: cohort)
  assert state.joined.tolist() == [True, True, False, False, True, False]
  assert int(infos[-1].clusters.sizes.sum()) == 3
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  losses = reference.losses(centers, data, range(6))
  best = np.argmin(losses, axis=1)
  # Who has taken part deploys the model that it trained, even if another is better.
  state = state._replace(
    assignment=jnp.where(state.joined, 1 - best, 2).astype(jnp.int32)
  )
  used = deployed(algorithm, state, data)
  own = np.where(state.joined, 1 - best, best)
  np.testing.assert_array_equal(used, matrix(state.centers)[own])


def test_late_clients_choose_by_one_example_and_without_any_the_first_model():
  # Each model says its class.
  x, sizes = np.zeros((4, *helpers.SHAPE), np.float32), [2, 1, 0, 1]
  data = FederatedData.from_arrays(x, np.array([0, 0, 1, 2]), sizes, num_classes=3)
  algorithm = algorithms.build('clove', helpers.local(hidden=()), num_clusters=3)
  logits = {'kernel': jnp.zeros((3, *helpers.SHAPE, 3)), 'bias': jnp.eye(3)}
  own = jnp.array([1, 3, 3, 3])  # The first client has taken part.
  state = CloveState({'logits': logits}, own, jnp.int32(5))
  used = jax.jit(algorithm.deployed)(state, data)
  assert used.choice.tolist() == [1, 1, 0, 2]
