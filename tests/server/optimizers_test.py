"""Server optimizers: the defaults of the paper's experiments, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.server import optimizers as server_optimizers
from tests.support.methods import assert_close


def steps(optimizer, deltas):
  """The optimizer's steps along these mean changes of the clients, one by one."""
  state, taken = optimizer.init(jnp.zeros(1)), []
  for delta in deltas:
    step, state = optimizer.update(jnp.array([-delta]), state)
    taken.append(float(step[0]))
  return taken


# Two changes of 1, from v = 1e-6: m is 1, then 1.9 or 1; or a tenth of it.
@pytest.mark.parametrize(
  ('name', 'm', 'v'),
  [
    ('adagrad', [1.0, 1.0], [1 + 1e-6, 2 + 1e-6]),
    ('adam', [0.1, 0.19], [0.01 + 0.99e-6, 0.0199 + 0.9801e-6]),
    ('yogi', [0.1, 0.19], [0.01 + 1e-6, 0.02 + 1e-6]),
  ],
)
def test_defaults_are_those_of_the_paper(name, m, v):
  result = steps(getattr(server_optimizers, name)(), [1.0, 1.0])
  assert_close(result, 0.1 * np.array(m) / (np.sqrt(v) + 1e-3), rtol=1e-5, atol=0)


def test_momentum_adds_up_changes_by_default():
  assert_close(steps(server_optimizers.momentum(), [1.0, 1.0]), [1.0, 1.9], rtol=1e-6)


def test_yogi_keeps_a_second_moment_that_equals_the_square():
  # tau^2 = Delta^2 = 1/4, to the last bit: both steps are 1/2 / (1/2 + 1/2).
  result = steps(server_optimizers.yogi(1.0, beta1=0.0, tau=0.5), [0.5, 0.5])
  assert_close(result, [0.5, 0.5], rtol=1e-6)


def test_noise_of_a_server_is_that_of_the_center_and_the_run():
  optimizer = optax.add_noise(1.0, 0.0, key=0)
  centers = {'w': jnp.zeros((2, 30))}

  def noise(state):
    moved, state = server_optimizers.move(
      optimizer, state, centers, centers, jnp.array([True, True])
    )
    return moved['w'], state

  result = []
  for seed in (0, 1):
    state = server_optimizers.init(optimizer, centers, jax.random.key(seed))
    for _ in range(2):  # Rounds; then the second center is replaced.
      first, state = noise(state)
      result.append(first)
    state = server_optimizers.renew(optimizer, state, jnp.array([True, False]), centers)
    result.append(noise(state)[0])
  alike = np.corrcoef(np.concatenate(result)) - np.eye(12)
  assert np.abs(alike).max() < 0.8  # 1 for the same draws.


def test_only_centers_that_were_replaced_begin_anew():
  optimizer = server_optimizers.adam()
  centers = {'w': jnp.zeros((2, 3))}
  state = server_optimizers.init(optimizer, centers)
  old = state._replace(m={'w': jnp.ones((2, 3))}, v={'w': jnp.full((2, 3), 4.0)})
  new = server_optimizers.renew(optimizer, old, jnp.array([True, False]), centers)
  assert_close(new.m['w'][:, 0], [1.0, 0.0])
  assert_close(new.v['w'][:, 0], [4.0, 1e-6], atol=0)
