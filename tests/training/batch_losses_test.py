"""The loss of a batch, of which only the examples of weight 1 count."""

import jax.numpy as jnp

from fesem_jax.core.types import Model
from fesem_jax.training.batch_losses import Batch

# Outputs p x, and their squared distances from the targets as losses.
MODEL = Model(
  lambda key: jnp.float32(1.0), lambda p, x: p * x, lambda z, y: (z - y) ** 2
)
X, Y = jnp.array([1.0, 2.0, jnp.nan, 4.0]), jnp.array([0.0, 4.0, 1.0, jnp.inf])
WEIGHTS = jnp.array([1.0, 1.0, 0.0, 0.0])


def test_the_mean_is_over_the_examples_of_weight_1():
  loss = Batch(MODEL, X, Y, WEIGHTS).loss(jnp.float32(3.0))
  assert float(loss) == ((3 - 0) ** 2 + (6 - 4) ** 2) / 2
  none = Batch(MODEL, X, Y, jnp.zeros(4)).loss(jnp.float32(3.0))
  assert float(none) == 0


def test_factors_change_the_losses_but_not_their_number():
  factors = jnp.array([0.5, 3.0, 1.0, 1.0])
  loss = Batch(MODEL, X, Y, WEIGHTS, factors).loss(jnp.float32(3.0))
  assert float(loss) == (0.5 * 9 + 3 * 4) / 2
