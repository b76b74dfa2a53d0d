"""FedDrift against float64: drift, new models, merging, and clusters that it finds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.federated_data import FederatedData
from tests.support import helpers
from tests.support.methods import (
  assert_close,
  initial,
)


def test_who_has_no_losses_takes_no_part_in_the_begin_of_a_time_step():
  # Models 0 to 2 say their class, model 3 none. All clients but one were in model 1.
  y = np.array([0] * 4 + [2] + [1] * 4 + [0] * 2)
  x, sizes = np.zeros((11, *helpers.SHAPE), np.float32), [4, 1, 0, 4, 2]
  data = FederatedData.from_arrays(x, y, sizes, num_classes=3)
  x[9] = np.nan  # Of client 4.
  data = dataclasses.replace(data, x=x)
  algorithm = algorithms.build(
    'fed_drift', helpers.local(hidden=()), max_clusters=5, check_every=1,
    drift_delta=0.01,
  )  # fmt: skip
  logits = {'kernel': jnp.zeros((5, *helpers.SHAPE, 3)), 'bias': 5.0 * jnp.eye(5, 3)}
  state = initial(algorithm, data)._replace(
    centers={'logits': logits},
    assignment=jnp.array([1, 1, 3, 1, 1]),
    client_losses=jnp.full(5, 10.0),
    last_used=jnp.array([0, 0, 0, 0, -1]),
    rounds=jnp.int32(1),
  )
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(0)
  )
  # One example is enough; without any, or a loss, a client stays where it was.
  assert after.assignment.tolist() == [0, 2, 3, 1, 1]
  fits = np.log(1 + 2 * np.exp(-5))
  assert_close(after.client_losses, [fits, fits, 10, fits, 10])
  assert after.last_used.tolist() == [1, 1, 1, 0, -1]
