"""The choice among several draws of first centers."""

import jax.numpy as jnp
import pytest

from fesem_jax.algorithms.common import random_centers


@pytest.mark.parametrize(
  ('losses', 'best'),
  [
    ([3.0, 1.0, 2.0], 1),
    ([1.0, 2.0, 1.0], 2),  # Of equal ones the last.
    ([jnp.nan, 2.0, jnp.inf], 1),
    ([jnp.nan, jnp.inf, jnp.nan], 2),  # None trains, but one is taken.
    ([5.0], 0),
  ],
)
@pytest.mark.parametrize('side_by_side', [False, True])
def test_the_centers_of_least_loss_are_taken(losses, best, side_by_side):
  centers = {'w': jnp.arange(1.0, 7.0).reshape(3, 2)}

  def attempt(number):
    return jnp.array(losses)[number], {'w': centers['w'][number]}

  count = len(losses)
  at_once = count if side_by_side else 1
  found = random_centers._best_of(attempt, jnp.arange(count), at_once)
  assert found['w'].tolist() == centers['w'][best].tolist()
