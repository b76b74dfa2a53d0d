import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fesem_jax.server.linear_assignment import solve

SIZE = 30


def matrices():
  """Cost matrices that are easy, hard, full of ties, and nearly an identity."""
  rng = np.random.default_rng(0)
  points = rng.normal(size=(3, SIZE, 5))
  near = points[0][rng.permutation(SIZE)] + 0.3 * points[1]
  return {
    **{f'random{i}': rng.integers(0, 1000, (SIZE, SIZE)) for i in range(10)},
    'products': np.outer(np.arange(SIZE), np.arange(SIZE)),  # Every path is long.
    'ties': rng.integers(0, 3, (SIZE, SIZE)),
    'equal': np.ones((SIZE, SIZE)),
    'planted': np.square(points[0][:, None] - near[None]).sum(axis=2),
    'far': 1e6 + rng.normal(size=(SIZE, SIZE)),
    'home': 1 - np.eye(SIZE),
  }


@pytest.fixture(scope='module')
def solved():
  costs = np.stack([*matrices().values()]).astype(np.float32)
  alone = np.stack([*map(jax.jit(solve), jnp.asarray(costs))])
  return costs, alone, np.asarray(jax.jit(jax.vmap(solve))(costs))


def test_costs_are_scipys_optimum(solved):
  for name, cost, got in zip(matrices(), *solved[:2], strict=True):
    assert sorted(got) == [*range(SIZE)], name
    want = cost[linear_sum_assignment(cost)]
    np.testing.assert_allclose(
      cost[np.arange(SIZE), got].sum(), want.sum(), rtol=1e-6, atol=1e-5, err_msg=name
    )
  assert solved[1].dtype == np.int32


def test_many_at_once_give_what_each_gives_alone(solved):
  np.testing.assert_array_equal(solved[1], solved[2])


def test_rows_stay_at_home_where_that_is_as_good(solved):
  named = dict(zip(matrices(), solved[1], strict=True))
  for name in ('equal', 'home'):
    np.testing.assert_array_equal(named[name], np.arange(SIZE))


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf, 3e38])
def test_costs_beyond_float32_still_end(value):
  cost = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
  cost[::2, ::3] = value
  cost[3] = value
  assert sorted(np.asarray(jax.jit(solve)(cost))) == [*range(SIZE)]


def test_rows_stay_where_each_has_no_better_column_though_others_are_as_good():
  # As good are columns 0, 2 and 1.
  cost = jnp.array([[0.0, 0.0, 1.0], [2.0, 2.0, 2.0], [3.0, 0.0, 0.0]])
  assert jax.jit(solve)(cost).tolist() == [0, 1, 2]


def test_costs_that_are_no_numbers_are_avoided():
  cost = np.full((3, 3), np.nan, np.float32)
  cost[[0, 1, 2, 1], [2, 0, 1, 1]] = 5.0
  assert jax.jit(solve)(cost).tolist() == [2, 0, 1]
